"""A stack of processes, and this process on the network of one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dynamo.runtime import DistributedRuntime, RuntimeConfig
from dynamo.runtime.events import zmq as zmq_events
from support.stack import Stack, environ_of
from support.waiting import PATIENCE


@pytest.fixture
async def stack(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stack]:
    """A stack on the network that the test's `network` parameter names, or on files."""
    network = request.node.callspec.params.get("network", "file") if hasattr(request.node, "callspec") else "file"
    async with Stack(tmp_path, environ_of(network, request)) as stack:
        yield stack


@pytest.fixture
async def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[DistributedRuntime]:
    """This process on the network of a stack on files, whose publishers of events all live."""
    monkeypatch.setattr(zmq_events, "JOIN_SECONDS", PATIENCE)
    environ = {"DYN_FILE_KV": str(tmp_path / "discovery"), "DYN_TCP_RPC_HOST": "127.0.0.1"}
    async with DistributedRuntime(config=RuntimeConfig.from_env(environ)) as runtime:
        yield runtime
