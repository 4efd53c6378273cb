"""Fixtures every room shares: real services, each started on first use and stopped with the test that used it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest
import uvloop
from hypothesis import HealthCheck, settings

from support.leftovers import SESSION, nothing_left, orphans
from support.services import Etcd, Nats, free_port

# A fork for a terminal would start gRPC's threads in the child, which ends at the descriptors closed there before it is
# another program.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

# How long one example takes says how busy the machine is. The examples are the same in every run, so that what fails
# was changed; new ones are looked for by `make test-deep`.
settings.register_profile("default", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")
settings.register_profile("deep", max_examples=2_000, deadline=None, derandomize=False)
"""How many examples `make test-deep` asks for at once, of the tests that take their number from the profile."""


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests run on the loop that serves."""
    return {"uvloop": uvloop.new_event_loop}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test uses these two before its other fixtures, so that those have ended what they started.

    Where vLLM or the real SGLang is tested they are left out: these leave sockets, threads and processes of their own.
    """
    if find_spec("vllm") or os.environ.get("CONFORMANCE_ENGINE") == "sglang":
        return
    for item in items:
        if isinstance(item, pytest.Function):
            checks = [nothing_left_behind.__name__, no_task_left.__name__]
            own = item.fixturenames.index(log_levels.__name__)  # after those of the session and the module
            item.fixturenames[own:own] = checks if item.get_closest_marker("asyncio") else checks[:1]


@pytest.fixture(scope="session")
def temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where this process makes temporary files. Its children have another place: killed ones cannot tidy up.

    Both paths are short enough for sockets.
    """
    tmp_path_factory.getbasetemp()  # where it always was
    before = os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(prefix="tests-") as here, tempfile.TemporaryDirectory(prefix="tests-") as children:
        tempfile.tempdir, os.environ["TMPDIR"] = here, children
        yield Path(here)
        # Children of a process that was killed end by themselves a moment later.
        deadline = time.monotonic() + 60
        while (left := orphans(Path(children))) and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        tempfile.tempdir = None
        os.environ.pop("TMPDIR")
        if before is not None:
            os.environ["TMPDIR"] = before
    assert not left, f"tests left processes that outlived their parents: {left}"


@pytest.fixture
def nothing_left_behind(request: pytest.FixtureRequest, temporary_folder: Path) -> Iterator[None]:
    with nothing_left(temporary_folder, engines="started" in request.fixturenames):
        yield


@pytest.fixture
async def no_task_left() -> AsyncIterator[None]:
    yield
    # A task of grpc's client ends in its own time after its call has.
    left = {task for task in asyncio.all_tasks() - {asyncio.current_task()} if "/grpc/" not in repr(task)}
    assert not left, f"the test left {left}"


@pytest.fixture(autouse=True)
def log_levels() -> Iterator[None]:
    """Those a test sets are gone with it: the next one may look for a warning."""
    loggers = [logging.getLogger(), logging.getLogger("dynamo")]
    before = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


@pytest.fixture(scope="session")
def shared_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """One etcd for every test that does not stop it; tests keep apart by namespace."""
    with Etcd(tmp_path_factory.mktemp("etcd") / "data", free_port()) as server:
        SESSION.add(server.pid)
        yield server


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    """An etcd of the test's own, to stop and start."""
    with Etcd(tmp_path / "etcd", free_port()) as server:
        yield server


@pytest.fixture(scope="session")
def shared_nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nats]:
    with Nats(tmp_path_factory.mktemp("nats") / "data", free_port()) as server:
        SESSION.add(server.pid)
        yield server


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[Nats]:
    with Nats(tmp_path / "nats", free_port()) as server:
        yield server
