"""The guides' lines for vLLM on one machine, run as they stand; the models they name are the bundled one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dynamo.model import bundled
from support.guide_lines import LINES
from support.running import environment, running

FOLDERS = ("llms/Llama-3.2-3B-Instruct", "llm_models/Llama-3.2-3B-Instruct")
GGUF = "llm_models/Llama-3.2-3B-Instruct-Q6_K.gguf"
HERE = [
    line.command
    for line in LINES
    if " out=vllm " in line.command
    and line.command.startswith(("dynamo-run in=dyn", "./dynamo-run in=http"))
    and line.command.rstrip("/").endswith(FOLDERS)
]
FOLDER_LINES = [line for line in HERE if ".gguf" not in line]
GGUF_LINES = [line for line in HERE if GGUF in line]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for folder in FOLDERS:
        shutil.copytree(bundled(), tmp_path / folder, ignore=shutil.ignore_patterns("*.gguf"))
    shutil.copy(bundled() / "tiny.gguf", tmp_path / GGUF)
    script = tmp_path / "dynamo-run"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dynamo.run.main "$@"\n')
    script.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("line", GGUF_LINES)
def test_a_gguf_file_needs_the_plugin_of_vllm(line: str, home: Path) -> None:
    env = environment(home, HOME=str(home), DYN_HTTP_PORT="0")
    done = subprocess.run(["sh", "-c", f"exec {line}"], cwd=home, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install vllm-gguf-plugin" in done.stderr


@pytest.mark.parametrize("line", FOLDER_LINES)
def test_guide_lines_with_vllm_answer(line: str, home: Path) -> None:
    path = f"{home}:{os.environ['PATH']}"
    env = environment(home, PATH=path, HOME=str(home), DYN_HTTP_PORT="0", OMP_NUM_THREADS="1")
    with running(home, program=["sh", "-c", f"exec {line}"], **env) as process:
        if "in=http" in line:
            process.url()
            curl = process.line_with("try: curl").partition("try: ")[2]
            answer = json.loads(subprocess.run(["sh", "-c", f"{curl} -s"], capture_output=True, check=True).stdout)
            assert answer["choices"][0]["message"]["content"]
        else:
            process.line_with("worker for '")
            asked = ["dynamo-run", "out=dyn"]
            done = subprocess.run(
                asked,
                input="What is the capital of France?",
                cwd=home,
                env=env,
                capture_output=True,
                text=True,
                check=True,
            )
            assert "Paris" in done.stdout
        assert process.end() == 0
