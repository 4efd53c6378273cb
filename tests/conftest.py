"""Fixtures every room shares: real services, each started on first use and stopped with the test that used it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop
from services import Etcd, Nats, free_port


@pytest.fixture(scope="session")
def event_loop_policy() -> uvloop.EventLoopPolicy:
    """Tests run on the loop that serves."""
    return uvloop.EventLoopPolicy()


@pytest.fixture(scope="session")
def shared_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """One etcd for every test that does not stop it; tests keep apart by namespace."""
    server = Etcd(tmp_path_factory.mktemp("etcd") / "data", free_port())
    server.start()
    yield server
    server.stop()


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    """An etcd of the test's own, to stop and start."""
    server = Etcd(tmp_path / "etcd", free_port())
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def shared_nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nats]:
    server = Nats(tmp_path_factory.mktemp("nats") / "data", free_port())
    server.start()
    yield server
    server.stop()


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[Nats]:
    server = Nats(tmp_path / "nats", free_port())
    server.start()
    yield server
    server.stop()
