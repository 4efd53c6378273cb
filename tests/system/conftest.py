"""Networks to run a stack on: what the environment must say for each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dynamo.runtime import DistributedRuntime, RuntimeConfig
from dynamo.runtime.events import zmq as zmq_events
from support.services import Etcd, Nats
from support.stack import Stack
from support.waiting import PATIENCE


def environ_of(network: str, request: pytest.FixtureRequest) -> dict[str, str]:
    """Every stack has servers of its own: the leases of killed workers outlive their test."""
    environ = {"DYN_TCP_RPC_HOST": "127.0.0.1"}
    if "etcd" in network:
        etcd: Etcd = request.getfixturevalue("etcd")
        environ["ETCD_ENDPOINTS"] = etcd.url
    if "nats" in network:
        nats: Nats = request.getfixturevalue("nats")
        environ |= {"NATS_SERVER": nats.url, "DYN_REQUEST_PLANE": "nats"}
    return environ


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
