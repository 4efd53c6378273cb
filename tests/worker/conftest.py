"""Workers as processes, this process on their network, and a distribution with an engine of its own."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dynamo.runtime import DistributedRuntime, RuntimeConfig
from support import child_engine
from support.distribution import install
from support.stack import Stack


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    """With the engine `child` installed."""
    modules = {"child_engine.py": Path(child_engine.__file__).read_text()}
    path = install(tmp_path / "site", "children", modules, "child = child_engine:ENTRY")
    environ = {"PYTHONPATH": path, "DYN_TCP_RPC_HOST": "127.0.0.1", "DYN_SYSTEM_HOST": "127.0.0.1"}
    async with Stack(tmp_path, environ) as stack:
        yield stack
        for process in stack.processes:
            if process.child.returncode is None:
                process.signal(signal.SIGTERM)  # SIGKILL would leave the processes of its engine
                await process.ended()


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[DistributedRuntime]:
    environ = {"DYN_FILE_KV": str(tmp_path / "discovery"), "DYN_TCP_RPC_HOST": "127.0.0.1"}
    async with DistributedRuntime(config=RuntimeConfig.from_env(environ)) as runtime:
        yield runtime
