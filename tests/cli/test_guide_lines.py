"""The command lines of the guides, run as they stand.

The models they name are stood in for by a Llama of 64 dimensions: in a Hugging Face hub of our own, in folders and in
GGUF files. Addresses that do not exist here (`/home/user`, `<hf-repo-checkout>`) are replaced by ones that do.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from support.guide_lines import LINES, Line
from support.hub import Hub
from support.running import SOURCE, environment, running
from support.tiny_llama import tiny_llama, tiny_llama_gguf
from support.waiting import PATIENCE

GUIDE = SOURCE.parent / "docs" / "guide-lines.md"
EXAMPLES = SOURCE.parent / "examples"
FOLDERS = (
    "llms/Llama-3.2-3B-Instruct",
    "llms/Llama-4-Scout-17B-16E-Instruct",
    "llm_models/Llama-3.2-3B-Instruct",
    "checkout/Qwen2.5-3B-Instruct",
)
FILES = (
    "Llama-3.2-1B-Instruct-Q4_K_M.gguf",
    "Llama-3.2-3B-Instruct-Q4_K_M.gguf",
    "llms/Llama-3.2-3B-Instruct/model.gguf",
    "llms/Llama-4-Scout-17B-16E-Instruct-UD-IQ1_S.gguf",
    "llms/Qwen3-0.6B-Q8_0.gguf",
    "llms/gemma-3-1b-it-q4_0.gguf",
    "llm_models/Llama-3.2-3B-Instruct-Q6_K.gguf",
)
REPOS = ("Qwen/Qwen2.5-3B-Instruct", "Qwen/Qwen3-0.6B", "Qwen/Qwen3-4B", "TinyLlama/TinyLlama-1.1B-Chat-v1.0")
STAND_INS = {
    "out=pystr:/home/user/my_python_engine.py": f"out=pystr:{EXAMPLES}/engines/pystr_engine.py",
    "out=pystr:/workspace/examples/tensorrt_llm/engines/trtllm_engine.py": (
        f"out=pystr:{EXAMPLES}/engines/pystr_engine.py"
    ),
    "out=pytok:/home/user/my_python_engine.py": "out=pytok:small_ids.py",
    "<hf-repo-checkout>": "checkout/Qwen2.5-3B-Instruct",
    "<model>": "llms/Llama-3.2-3B-Instruct",
    "--context-length 32768": "--context-length 128",
}


def of(*outcomes: str) -> pytest.MarkDecorator:
    lines = [line for line in LINES if line.outcome in outcomes]
    return pytest.mark.parametrize("line", lines, ids=lambda line: line.command[:60])


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the models the guides name, and the commands on its path."""
    home = tmp_path_factory.mktemp("home")
    model = tiny_llama(home / "model")
    for folder in FOLDERS:
        shutil.copytree(model, home / folder)
    for file in FILES:
        tiny_llama_gguf(home / file)
    (home / "mocker_args.json").write_text('{"speedup_ratio": 10.0}')
    (home / "sglang_extra.json").write_text('{"dtype": "half", "trust_remote_code": true}')
    (home / "trtllm_extra.yaml").write_text("backend: pytorch\nkv_cache_config:\n  event_buffer_max_size: 1024\n")
    (home / "prompts.jsonl").write_text('{"text": "the capital of France"}\n{"text": "the capital of Spain"}\n')
    (home / "short.json").write_text('{"max_completion_tokens": 8}')
    (home / "small_ids.py").write_text("async def generate(request):\n    yield {'token_ids': [70, 71]}\n")
    (home / "bin").mkdir()
    for name, body in (
        ("dynamo-run", "-m dynamo.cli.main"),
        ("dynamo", '-c "from dynamo.cli.main import dynamo; dynamo()"'),
        ("python", ""),
    ):
        script = home / "bin" / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {body} "$@"\n')
        script.chmod(0o755)
    os.symlink(home / "bin" / "dynamo-run", home / "dynamo-run")
    return home


@pytest.fixture(scope="module")
def hub(home: Path) -> Iterator[Hub]:
    hub = Hub()
    for repo in REPOS:
        hub.add(repo, home / "model")
    hub.start()
    yield hub
    hub.stop()


@pytest.fixture
def env(home: Path, hub: Hub, tmp_path: Path) -> dict[str, str]:
    return environment(
        tmp_path,
        PATH=f"{home / 'bin'}:{os.environ['PATH']}",
        HOME=str(home),
        HF_HUB_OFFLINE="0",
        HF_ENDPOINT=hub.endpoint,
        DYN_HTTP_PORT="0",
        PROMPT_TOOLKIT_NO_CPR="1",
    )


def shell(line: Line) -> list[str]:
    command = line.command.replace("--http-port 8080", "--http-port 0")
    for written, here in STAND_INS.items():
        command = command.replace(written, here)
    # One process, so that a signal to it reaches the command.
    if command.startswith("DYN_"):
        command = f"env {command}"
    return ["sh", "-c", command if "|" in command else f"exec {command}"]


def finished(line: Line, home: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        shell(line), cwd=home, env=env, capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL,
        check=False,
    )  # fmt: skip


@of("help")
def test_help(line: Line, home: Path, env: dict[str, str]) -> None:
    assert finished(line, home, env).stdout.startswith(f"usage: {line.command.removesuffix(' --help')}")


@of("absent")
def test_engines_that_are_not_installed(line: Line, home: Path, env: dict[str, str]) -> None:
    done = finished(line, home, env)
    assert done.returncode == 1
    refused = ("error: this build does not have the engine ", "error: cannot load the engine ")
    said = done.stderr.splitlines()[-1]
    assert said.startswith(refused)
    assert "pip install" in said
    assert "Traceback" not in done.stderr or "-vv" in line.command


@of("chat", "frontend")
def test_chats(line: Line, home: Path, env: dict[str, str], tmp_path: Path) -> None:
    chat = pexpect.spawn("sh", shell(line)[1:], cwd=str(home), env=env, encoding="utf-8", timeout=PATIENCE)
    try:
        if line.outcome == "frontend":
            chat.expect_exact("waiting for a worker")
            chat.sendintr()
        else:
            chat.expect_exact("Talking to ")
            chat.expect_exact("\x1b[?2004h")
            chat.sendeof()
        chat.expect(pexpect.EOF)
    finally:
        chat.close(force=True)
    assert chat.exitstatus == 0


@of("pipe")
def test_pipes(line: Line, home: Path, env: dict[str, str]) -> None:
    done = finished(line, home, env)
    assert done.returncode == 0
    assert done.stdout


@of("server")
def test_servers(line: Line, home: Path, env: dict[str, str]) -> None:
    with running(home, program=shell(line), **env) as server:
        url = server.url()
        curl = server.line_with("try: curl").partition("try: ")[2].replace("]}'", '], "max_tokens": 4}\'')
        answer = json.loads(subprocess.run(["sh", "-c", f"{curl} -s"], capture_output=True, check=True).stdout)
        assert answer["choices"][0]["finish_reason"] in ("stop", "length")
        assert url in curl
        assert server.end() == 0


@of("ingress")
def test_ingress(line: Line, home: Path, env: dict[str, str]) -> None:
    with running(home, program=shell(line), **env) as server:
        server.url()
        assert server.end() == 0


@of("worker")
def test_workers(line: Line, home: Path, env: dict[str, str]) -> None:
    with running(home, program=shell(line), **env) as worker:
        worker.line_with("worker for '")
        done = subprocess.run(
            ["dynamo-run", "out=dyn", "--request-template", "short.json"],
            input="hello", cwd=home, env=env, capture_output=True, text=True, timeout=PATIENCE, check=True,
        )  # fmt: skip
        assert done.stdout
        assert worker.end() == 0


@of("batch")
def test_batches(line: Line, home: Path, env: dict[str, str]) -> None:
    (home / "output.jsonl").unlink(missing_ok=True)  # the answers of another line's batch are not replaced
    done = finished(line, home, env)
    assert done.returncode == 0, done.stderr
    records = [json.loads(each) for each in (home / "output.jsonl").read_text().splitlines()]
    assert [record["text"] for record in records] == ["the capital of France", "the capital of Spain"]
    assert all({"response", "tokens_in", "tokens_out", "elapsed_ms"} <= set(record) for record in records)


@of("curl")
def test_requests(line: Line, home: Path, env: dict[str, str]) -> None:
    """Sent to a server whose model has the name the request gives, and whose port is not 8080 but a free one."""
    name = "m"
    if '"model": "' in line.command:
        name = line.command.partition('"model": "')[2].partition('"')[0]
    words = ["dynamo-run", "in=http", "out=echo_core", "llms/Llama-3.2-3B-Instruct", "--model-name", name]
    with running(home, program=words, **env) as server:
        url = server.url()
        command = line.command.replace(
            "...", "-H 'Content-Type: application/json' http://localhost:8080/v1/chat/completions"
        )
        command = command.replace("2049", "200").replace("4096", "200").replace("300", "200")
        command = command.replace("http://localhost:8080", url).replace("localhost:8080", url)
        answer = subprocess.run(["sh", "-c", f"{command} -s"], capture_output=True, text=True, check=True).stdout
        if 'stream": true' in answer or answer.startswith("data:"):
            assert answer.rstrip().endswith("data: [DONE]")
        elif "/v1/models" in command:
            assert [model["id"] for model in json.loads(answer)["data"]] == [name]
        else:
            assert json.loads(answer)["choices"][0]["finish_reason"] == "stop"


def test_the_guide_lists_every_line_and_its_test() -> None:
    text = GUIDE.read_text()
    tests = {"chat": "test_chats", "frontend": "test_chats", "pipe": "test_pipes", "server": "test_servers",
             "ingress": "test_ingress", "worker": "test_workers", "batch": "test_batches", "curl": "test_requests",
             "help": "test_help", "absent": "test_engines_that_are_not_installed"}  # fmt: skip
    for line in LINES:
        shown = line.command.replace("|", "\\|")
        assert f"| `{shown}` | {' '.join(line.documents)} | {tests[line.outcome]} |" in text
