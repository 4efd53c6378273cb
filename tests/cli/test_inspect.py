"""`dynamo inspect` beside real processes."""

from __future__ import annotations

import contextlib
import re
import signal
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from dynamo.cli.inspect.command import inspect
from support.running import running
from support.toys import Live
from support.waiting import PATIENCE, until_sync

ENGINE = """
import asyncio, time

async def generate(request):
    if "stuck" in str(request):
        think_for_a_long_time()
    await asyncio.sleep(0)
    yield {"choices": [{"index": 0, "delta": {"content": "ok"}, "finish_reason": "stop"}]}

def think_for_a_long_time():
    while True:
        time.sleep(0.01)
"""


@pytest.fixture
def runtime_folder() -> Iterator[str]:
    """A socket's path must be short, and a test's own folder may not be."""
    with tempfile.TemporaryDirectory(prefix="dyn") as folder:
        yield folder


def ask_chat(url: str, content: str) -> None:
    body = {"model": "engine", "messages": [{"role": "user", "content": content}]}
    sent = urllib.request.Request(
        f"{url}/v1/chat/completions", msgspec.json.encode(body), {"Content-Type": "application/json"}
    )
    urllib.request.urlopen(sent, timeout=PATIENCE).read()


def test_a_stuck_engine_is_named_and_everything_else_is_answered_before(
    tmp_path: Path, runtime_folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "engine.py").write_text(ENGINE)
    environ = {"XDG_RUNTIME_DIR": runtime_folder}

    def inspected(*words: str) -> tuple[int, str]:
        code = inspect(words, environ)
        shown = capsys.readouterr()
        return code, shown.out + shown.err

    words = ("in=http", "out=pystr:engine.py", "--http-port", "0")
    with running(tmp_path, *words, XDG_RUNTIME_DIR=runtime_folder) as process:
        url, pid = process.url(), str(process.popen.pid)
        ask_chat(url, "hello")

        code, text = until_sync(lambda: (found := inspected(url))[0] == 0 and found)  # a busy machine may hold the loop
        assert re.search(rf"process {pid} .*TASKS: \d+.*QUEUES: 1.*STREAMS: 0", text, re.DOTALL)
        assert inspected()[1].split()[0] == pid
        assert inspected(pid, "--log", "debug,dynamo.router=error") == (0, "log levels: debug,dynamo.router=error\n")
        assert "thread MainThread:" in inspected(pid, "--stacks")[1]
        assert "builtins.dict" in inspected(pid, "--objects")[1]
        folded = tmp_path / "folded"
        assert "BY THREAD" in inspected(pid, "--profile", "0.1", "--folded", str(folded))[1]
        assert folded.exists()
        assert "there is no table 'beans'" in inspected(pid, "beans")[1]

        def stuck() -> None:
            with contextlib.suppress(OSError):  # the process is killed before it answers
                ask_chat(url, "stuck")

        asking = threading.Thread(target=stuck)
        asking.start()
        code, text = until_sync(lambda: "think_for_a" in (found := inspected(url))[1] and found)
        assert code == 3
        assert re.search(r"LOOP IS BLOCKED: .* it has not left\n  think_for_a_long_time  .*engine.py:1\d", text)
        process.popen.send_signal(signal.SIGSTOP)
        until_sync(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("T"))
        assert "is stopped: state T" in inspected(pid)[1]
        process.popen.kill()
        asking.join(PATIENCE)
    assert inspected(pid)[0] == 1
    assert inspected() == (0, "No process of this user can be inspected: none runs, or DYN_INSPECT is off.\n")


async def test_a_frontend_is_inspected_over_http_with_an_admin_key() -> None:
    async with Live(admin_keys=("root",)) as live:
        assert (await live.post("/inspect", {}))[0] == 401
        async with live.http.post("/inspect", json={}, headers={"Authorization": "Bearer root"}) as answer:
            parts = [msgspec.json.decode(line) for line in (await answer.read()).splitlines()]
        assert parts[0]["kind"] == "process"


@pytest.mark.parametrize("words", [["nonsense:port"], ["http://127.0.0.1:9", "--stacks"], ["1", "--profile", "0"]])
def test_what_cannot_be_inspected_is_one_line(
    words: list[str], runtime_folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inspect(words, {"XDG_RUNTIME_DIR": runtime_folder}) == 1
    assert re.fullmatch(r"error: .*\n", capsys.readouterr().err)
