"""The guides' lines for vLLM, run as they stand; the models they name are the bundled one.

`/data` is a folder of the home here. Of lines that differ only in names one is run. Lines for several nodes are run by
hand (docs/vllm.md).
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

from dynamo.model import bundled
from support.guide_lines import LINES
from support.hub import Hub
from support.running import environment, running
from support.waiting import PATIENCE

FOLDERS = ("llms/Llama-3.2-3B-Instruct", "llm_models/Llama-3.2-3B-Instruct", "data/Llama-3.1-8B-Instruct")
REPO = "Qwen/Qwen3-4B"
GGUF = "llm_models/Llama-3.2-3B-Instruct-Q6_K.gguf"
HERE = [
    line.command.replace(" /data/", " ~/data/")
    for line in LINES
    if " out=vllm " in line.command and "--tensor-parallel-size" not in line.command and "in=none" not in line.command
]
ALIKE = (
    "dynamo run out=vllm Qwen/Qwen3-4B",
    "dynamo-run in=dyn://qwen3-32b.backend.generate out=vllm ~/data/Qwen3-32B",
    "dynamo-run in=dyn://dynamo.endpoint.generate out=vllm ~/data/llms/Qwen/Qwen3-4B",
)
GGUF_LINES = [line for line in HERE if GGUF in line]
CHATS = [line for line in HERE if line.endswith(f"out=vllm {REPO}") and line not in ALIKE]
WORKERS = [line for line in HERE if "in=dyn" in line and line not in ALIKE]
SERVERS = [line for line in HERE if "in=http" in line and line not in GGUF_LINES]
QUESTION = "What is the capital of France?"


def test_every_line_is_run_or_is_like_one_that_is() -> None:
    assert sorted([*GGUF_LINES, *CHATS, *WORKERS, *SERVERS, *ALIKE]) == sorted(HERE)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    model = home / FOLDERS[0]
    shutil.copytree(bundled(), model, ignore=shutil.ignore_patterns("*.gguf"))
    for folder in FOLDERS[1:]:
        shutil.copytree(model, home / folder)
    shutil.copy(bundled() / "tiny.gguf", home / GGUF)
    for name, body in (
        ("dynamo-run", "-m dynamo.cli.main"),
        ("dynamo", '-c "from dynamo.cli.main import dynamo; dynamo()"'),
    ):
        script = home / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {body} "$@"\n')
        script.chmod(0o755)
    return home


@pytest.fixture
def env(home: Path, tmp_path: Path) -> dict[str, str]:
    path = f"{home}:{os.environ['PATH']}"
    return environment(tmp_path, PATH=path, HOME=str(home), DYN_HTTP_PORT="0", OMP_NUM_THREADS="1")


@pytest.fixture
def hub(home: Path) -> Iterator[Hub]:
    hub = Hub()
    hub.add(REPO, home / FOLDERS[0])
    hub.start()
    yield hub
    hub.stop()


@pytest.mark.parametrize("line", GGUF_LINES)
def test_a_gguf_file_needs_the_plugin_of_vllm(line: str, home: Path, env: dict[str, str]) -> None:
    done = subprocess.run(["sh", "-c", f"exec {line}"], cwd=home, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install vllm-gguf-plugin" in done.stderr


@pytest.mark.parametrize("line", SERVERS)
def test_guide_lines_with_vllm_answer(line: str, home: Path, env: dict[str, str]) -> None:
    with running(home, program=["sh", "-c", f"exec {line}"], **env) as process:
        process.url()
        curl = process.line_with("try: curl").partition("try: ")[2]
        answer = json.loads(subprocess.run(["sh", "-c", f"{curl} -s"], capture_output=True, check=True).stdout)
        assert answer["choices"][0]["message"]["content"]
        assert process.end() == 0


@pytest.mark.parametrize("line", WORKERS)
def test_workers_of_the_guides_with_vllm_answer(line: str, home: Path, env: dict[str, str]) -> None:
    with running(home, program=["sh", "-c", f"exec {line}"], **env) as process:
        process.line_with("worker for '")
        asked = ["dynamo-run", "out=dyn"]
        done = subprocess.run(asked, input=QUESTION, cwd=home, env=env, capture_output=True, text=True, check=True)
        assert "Paris" in done.stdout
        assert process.end() == 0


@pytest.mark.parametrize("line", CHATS)
def test_chats_of_the_guides_with_vllm_answer(line: str, home: Path, env: dict[str, str], hub: Hub) -> None:
    env |= {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": hub.endpoint, "PROMPT_TOOLKIT_NO_CPR": "1"}
    chat = pexpect.spawn("sh", ["-c", f"exec {line}"], cwd=str(home), env=env, encoding="utf-8", timeout=PATIENCE)
    try:
        chat.expect_exact("\x1b[?2004h")
        chat.sendline(QUESTION)
        chat.expect_exact("Paris")
        chat.expect_exact("\x1b[?2004h")
        chat.sendeof()
        chat.expect(pexpect.EOF)
    finally:
        chat.close(force=True)
    assert chat.exitstatus == 0
