"""What `dynamo serve` started goes on when it is killed, and the next one finds it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier

import pytest

from cli.test_serve import SERVE, lines_until
from support.running import environment, run
from support.services import free_port
from support.waiting import PATIENCE, until_sync

STREAMS, TOKENS = 16, 120
SCRIPT = "trap 'exit 0' TERM; echo process $$; while :; do sleep 0.02; done"


@contextmanager
def serving(place: Path) -> Iterator[subprocess.Popen[str]]:
    env = environment(place)
    del env["DYN_FILE_KV"]  # a deployment has a folder of its own
    process = subprocess.Popen(
        [*SERVE, "serve.yaml"], cwd=place, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Whatever a test leaves is ended with it."""
    yield tmp_path
    run(tmp_path, "--stop", "serve.yaml", program=SERVE)


def shells(place: Path, replicas: int = 1, script: str = SCRIPT) -> None:
    file = f'drain_seconds: 20\ncomponents: {{a: {{replicas: {replicas}, command: [sh, -c, "{script}"]}}}}'
    (place / "serve.yaml").write_text(file)


def pids(supervisor: subprocess.Popen[str], count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        *_, line = lines_until(supervisor, "process ")
        found.append(int(line.split()[-1]))
    return sorted(found)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def models(url: str) -> list[object]:
    with urllib.request.urlopen(f"{url}/models", timeout=PATIENCE) as answer:
        return list(json.load(answer)["data"])


def test_streams_finish_when_their_supervisor_is_killed_and_the_next_one_adopts_the_processes(place: Path) -> None:
    port = free_port()
    (place / "serve.yaml").write_text(
        "components:\n"
        "  worker: {kind: mocker, replicas: 2, flags: {model-path: tiny, model-name: m}}\n"
        f"  frontend: {{flags: {{http-port: {port}}}}}\n"
    )
    url = f"http://127.0.0.1:{port}/v1"
    under_way = Barrier(STREAMS + 1)

    def stream() -> int:
        body = {"model": "m", "prompt": "Count.", "max_tokens": TOKENS, "ignore_eos": True, "stream": True,
                "stream_options": {"include_usage": True}}  # fmt: skip
        usage = None
        request = urllib.request.Request(
            f"{url}/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            for number, line in enumerate(line for line in answer if line.startswith(b"data: {")):
                if number == 0:
                    under_way.wait(PATIENCE)
                usage = json.loads(line[6:]).get("usage") or usage
        assert usage is not None
        return int(usage["completion_tokens"])

    with serving(place) as first, ThreadPoolExecutor(STREAMS) as threads:
        list(lines_until(first, "all components are ready"))
        until_sync(lambda: models(url))
        streams = [threads.submit(stream) for _ in range(STREAMS)]
        under_way.wait(PATIENCE)
        first.kill()
        first.wait(PATIENCE)
        assert [each.result(PATIENCE) for each in streams] == [TOKENS] * STREAMS
    with serving(place) as second:
        said = list(lines_until(second, "all components are ready"))
        assert any("adopted 3 processes that were running" in line for line in said)
        assert not any("worker for" in line for line in said)
        assert models(url)
        second.send_signal(signal.SIGTERM)
        list(lines_until(second, "draining all components"))
        assert second.wait(PATIENCE) == 0
    with pytest.raises(OSError, match="refused"):
        models(url)


def test_a_second_supervisor_of_the_same_file_is_refused(place: Path) -> None:
    shells(place)
    with serving(place) as first:
        pids(first, 1)
        done = run(place, "serve.yaml", program=SERVE)
        assert done.returncode == 1
        sentence = (
            f"error: serve.yaml is served already, by process {first.pid}; dynamo serve --stop serve.yaml ends it"
        )
        assert done.stderr.decode() == sentence + "\n"
        assert first.poll() is None


def test_stop_drains_what_a_running_supervisor_has(place: Path) -> None:
    shells(place)
    with serving(place) as first:
        (pid,) = pids(first, 1)
        assert run(place, "--stop", "serve.yaml", program=SERVE).returncode == 0
        assert first.wait(PATIENCE) == 0
        assert not alive(pid)


def test_stop_drains_what_a_supervisor_that_was_killed_has_left(place: Path) -> None:
    shells(place, replicas=3)
    with serving(place) as first:
        left = pids(first, 3)
        first.kill()
        first.wait(PATIENCE)
    assert all(map(alive, left))
    assert run(place, "--stop", "serve.yaml", program=SERVE).returncode == 0
    assert not any(map(alive, left))
    assert b"nothing of serve.yaml runs" in run(place, "--stop", "serve.yaml", program=SERVE).stdout


def test_an_adopted_process_that_dies_is_started_again(place: Path) -> None:
    shells(place)
    with serving(place) as first:
        (pid,) = pids(first, 1)
        first.kill()
        first.wait(PATIENCE)
    with serving(place) as second:
        list(lines_until(second, "all components are ready"))
        os.kill(pid, signal.SIGKILL)
        (again,) = pids(second, 1)
        assert again != pid
        assert alive(again)


def test_what_the_file_no_longer_has_or_has_changed_is_drained_and_not_adopted(place: Path) -> None:
    shells(place, replicas=2)
    with serving(place) as first:
        old = pids(first, 2)
        first.kill()
        first.wait(PATIENCE)
    shells(place, script=SCRIPT + "; true")
    with serving(place) as second:
        (new,) = pids(second, 1)
        list(lines_until(second, "all components are ready"))
        assert alive(new)
        assert not any(map(alive, old))


def test_a_number_that_another_process_has_now_is_not_adopted(place: Path) -> None:
    shells(place)
    with serving(place) as first:
        (pid,) = pids(first, 1)
        first.kill()
        first.wait(PATIENCE)
    (record,) = (place / "state").glob("dynamo/serve/*/*.process")
    other = json.loads(record.read_text()) | {"pid": os.getpid()}
    record.write_text(json.dumps(other))
    os.kill(pid, signal.SIGKILL)
    with serving(place) as second:
        said = list(lines_until(second, "all components are ready"))
        assert not any("adopted" in line for line in said)
