"""`dynamo serve FILE.yaml`, and the files in examples/."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from dynamo.cli import serve
from dynamo.supervisor import read_deployment
from support.running import SOURCE, environment, run
from support.services import free_port
from support.waiting import PATIENCE, until_sync

SERVE = [sys.executable, "-c", "from dynamo.cli.main import dynamo; dynamo()", "serve"]
EXAMPLES = sorted((SOURCE.parent / "examples").glob("*.yaml"))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_names_known_components(file: Path) -> None:
    kinds = [spec.kind for spec in read_deployment(file).components]
    assert kinds[-1] == "frontend"


def lines_until(process: subprocess.Popen[str], text: str) -> Iterator[str]:
    assert process.stdout
    for line in process.stdout:
        yield line
        if text in line:
            return
    raise AssertionError(f"it ended without saying '{text}'")


@pytest.mark.parametrize(
    ("example", "last_worker"),
    [
        ("aggregated", "worker-1"),
        pytest.param("disaggregated", "decode-1", marks=pytest.mark.chaos),
        pytest.param("tiered", "worker", marks=pytest.mark.chaos),
    ],
)
def test_an_example_answers_and_drains(tmp_path: Path, example: str, last_worker: str) -> None:
    port = free_port()
    file = tmp_path / "serve.yaml"
    text = (SOURCE.parent / "examples" / f"{example}.yaml").read_text()
    file.write_text(text.replace("8080", str(port)).replace("9090", str(free_port())))
    env = environment(tmp_path)
    del env["DYN_FILE_KV"]  # a deployment has a folder of its own
    process = subprocess.Popen(
        [*SERVE, str(file)], cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        said = list(lines_until(process, "all components are ready"))
        assert any(re.match(f"{last_worker} +[|] worker for 'tiny'", line) for line in said)
        with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none") as client:
            # Each process is ready; that the frontend has heard of the workers comes a moment later.
            until_sync(lambda: client.models.list().data)
            answer = client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "What is the capital of France?"}], temperature=0
            )
        assert "Paris" in (answer.choices[0].message.content or "")
        process.send_signal(signal.SIGTERM)
        said = list(lines_until(process, "draining all components"))
        assert process.wait(PATIENCE) == 0
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health")
    finally:
        process.kill()
        process.communicate()
        subprocess.run([*SERVE, "--stop", str(file)], cwd=tmp_path, env=env, capture_output=True)


def test_a_component_with_a_wrong_flag_ends_the_deployment_with_its_sentence(tmp_path: Path) -> None:
    (tmp_path / "serve.yaml").write_text("components: {frontend: {flags: {http-prot: 0}}}")
    done = run(tmp_path, "serve.yaml", program=SERVE)
    assert done.returncode == 1
    assert done.stderr.decode().startswith("error: frontend ended with 2 before it was ready; its last line: error: ")
    assert "\x1b" not in done.stdout.decode()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["missing.yaml"], "error: missing.yaml: No such file or directory\n"),
        (["a", "b"], "error: unknown word 'b'; see dynamo serve --help\n"),
    ],
)
def test_a_wrong_command_line_is_refused_in_one_line(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        serve.main(words, {})
    assert (refused.value.code, capsys.readouterr().err) == (2, sentence)


def test_check_prints_the_commands_and_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("components: {frontend: , mocker: {replicas: 3, flags: {model-path: tiny}}}")
    serve.main([str(file), "--check"], {})
    mocker, frontend = capsys.readouterr().out.splitlines()
    assert mocker.startswith("mocker × 3: ")
    assert mocker.endswith("-m dynamo.mocker --model-path tiny")
    assert frontend.endswith("-m dynamo.frontend")
