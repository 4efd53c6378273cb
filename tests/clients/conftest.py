"""Servers as users start them, and the clients as `make test-clients` installed them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest

from clients.install import installed, is_optional, why_missing
from support.models import write
from support.running import KEPT, running
from support.toys import toy_folder

HERE = Path(__file__).parent
PATIENCE = 240
"""Seconds that a client may take: some load half of PyPI before they begin."""


class Installed:
    """One client in its own folder, run without the machine's settings."""

    def __init__(self, name: str, home: Path) -> None:
        folder = installed(name)
        if folder is None:
            (pytest.skip if is_optional() else pytest.fail)(f"{name} is not installed: {why_missing(name)}")
        self.folder = folder
        self.home = home

    def run(self, *command: str, input: str = "", **env: str) -> str:
        """The client's standard output; a failure shows all that it said."""
        path = f"{self.folder / 'venv' / 'bin'}:{self.folder / 'node_modules' / '.bin'}:{os.environ['PATH']}"
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        done = subprocess.run(
            command,
            input=input,
            capture_output=True,
            text=True,
            cwd=self.home,
            env=kept | {"HOME": str(self.home), "PATH": path} | env,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, f"{command[0]} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def python(self, script: str, *arguments: str, **env: str) -> Any:
        """What a script prints last, which is JSON."""
        return json.loads(self.run("python", "-c", script, *arguments, **env).splitlines()[-1])

    def node(self, script: str, *arguments: str) -> Any:
        # Node finds packages beside the script, not beside the working directory.
        with NamedTemporaryFile("w", suffix=".mjs", dir=self.folder) as file:
            file.write(script)
            file.flush()
            return json.loads(self.run("node", file.name, *arguments).splitlines()[-1])


@pytest.fixture(scope="module")
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The client that the test module names in `CLIENT`."""
    return Installed(request.module.CLIENT, tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="session")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of `dynamo-run in=http` with the bundled model, which is called `tiny`."""
    with running(tmp_path_factory.mktemp("bundled"), "in=http", "--http-port", "0") as process:
        yield process.url()


@pytest.fixture(scope="session")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled vocabulary and template with room for an agent's prompt, and no weights."""
    folder = toy_folder(tmp_path_factory.mktemp("models") / "scripted")
    config = json.loads((folder / "config.json").read_text())
    write(folder / "config.json", config | {"max_position_embeddings": 1_000_000})
    return folder


@pytest.fixture(scope="session")
def scripted(long_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server whose model, `scripted`, does what it is asked (scripted_engine.py)."""
    place = tmp_path_factory.mktemp("scripted-server")
    words = ("--dyn-tool-call-parser", "hermes", "--dyn-reasoning-parser", "basic", "--http-port", "0")
    engine = f"out=pytok:{HERE / 'scripted_engine.py'}"
    tokenizer = str(long_model / "tokenizer.json")
    with running(place, "in=http", engine, str(long_model), *words, SCRIPTED_TOKENIZER=tokenizer) as process:
        yield process.url()


@pytest.fixture(scope="session")
def mocker(long_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server with the mocker, whose model is called `scripted` too."""
    with running(tmp_path_factory.mktemp("mocker"), "in=http", "out=mocker", str(long_model), "--http-port", "0") as it:
        yield it.url()


@pytest.fixture(scope="session")
def embedding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a frontend with a worker (embedding_worker.py) whose model is called `embedding`."""
    place = tmp_path_factory.mktemp("embedding")
    with running(place, "in=http", "out=dyn", "--http-port", "0") as frontend:
        url = frontend.url()
        with running(place, program=[sys.executable, str(HERE / "embedding_worker.py")]):
            frontend.line_with("model 'embedding' can be served")
            yield url


@pytest.fixture(scope="session")
def bundled_grpc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the KServe protocol with the bundled model."""
    words = ("--http-port", "0", "--kserve-grpc-server", "--grpc-metrics-port", "0")
    with running(tmp_path_factory.mktemp("grpc"), "in=http", *words) as process:
        yield process.line_with("serving gRPC on").rpartition(" ")[2]
