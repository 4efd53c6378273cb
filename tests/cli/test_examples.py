"""What examples/ holds, run as it stands."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import openai
import pytest

from support.running import SOURCE, environment, running
from support.services import free_port
from support.waiting import PATIENCE

EXAMPLES = SOURCE.parent / "examples"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A copy of the examples, and the command on its path."""
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "dynamo-run"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dynamo.cli.main "$@"\n')
    script.chmod(0o755)
    return tmp_path


def shell(place: Path, script: str, **env: str) -> str:
    whole = environment(place, OUT="echo_full", **env)
    whole["PATH"] = f"{place / 'bin'}:{whole['PATH']}"
    done = subprocess.run(
        [str(place / "examples" / script)], cwd=place, env=whole, capture_output=True, text=True, timeout=PATIENCE,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_server_and_its_requests(place: Path) -> None:
    models, whole, stream = shell(place, "http.sh", PORT=str(free_port())).split("\n", 2)
    assert json.loads(models)["data"][0]["id"] == "example"
    assert json.loads(whole)["choices"][0]["message"]["content"] == "What is the capital of France?"
    assert stream.rstrip().endswith("data: [DONE]")


def test_the_cluster_goes_on_when_a_worker_leaves(place: Path) -> None:
    told = shell(place, "distributed.sh", PORT=str(free_port()))
    assert told.count("What is the capital of France?") == 2


def test_the_batch(place: Path) -> None:
    records = [json.loads(line) for line in shell(place, "batch/run.sh").splitlines()]
    assert [record["response"] for record in records] == [record["text"] for record in records]


@pytest.mark.parametrize(
    ("script", "words", "asked", "answer"),
    [
        ("python_engine.py", True, "the quick fox", "user\nthe quick fox"),
        ("python_engine_text.py", False, "louder please", "LOUDER PLEASE"),
    ],
)
def test_engines_of_your_own(place: Path, model: Path, script: str, words: bool, asked: str, answer: str) -> None:
    name = "small-model" if words else "shouter"
    program = [sys.executable, str(EXAMPLES / script), *([str(model)] if words else [])]
    with running(place, "in=http", "out=dyn", "--http-port", "0") as server:
        url = server.url()
        with running(place, program=program), openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
            server.line_with(f"model '{name}' can be served")
            told = client.chat.completions.create(model=name, messages=[{"role": "user", "content": asked}])
    assert told.choices[0].message.content == answer
