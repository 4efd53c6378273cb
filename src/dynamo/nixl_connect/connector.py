"""The door to NIXL: one agent, whose memory other processes can read and write while an operation lasts."""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import Sequence
from typing import Any

from dynamo.nixl_connect.memory import Descriptor
from dynamo.nixl_connect.metadata import RdmaMetadata
from dynamo.nixl_connect.operations import ReadableOperation, ReadOperation, WritableOperation, WriteOperation


class Connector:
    """Make one per process. Operations connect by themselves; `initialize` does it ahead of time."""

    def __init__(self, worker_id: str | None = None) -> None:
        self.name = worker_id or f"dynamo-{uuid.uuid4().hex}"
        self.hostname = socket.gethostname()
        self._agent: Any = None
        self._connecting = asyncio.Lock()
        self._expected: set[str] = set()
        self._notified: set[str] = set()

    async def initialize(self) -> None:
        """Connect; raises ImportError where NIXL is not installed."""
        async with self._connecting:
            if self._agent is None:
                # It takes most of a second: NIXL looks at the devices of the machine.
                self._agent = await asyncio.to_thread(_make_agent, self.name)

    async def create_readable(self, local_descriptors: Descriptor | list[Descriptor]) -> ReadableOperation:
        await self.initialize()
        return ReadableOperation(self, local_descriptors)

    async def create_writable(self, local_descriptors: Descriptor | list[Descriptor]) -> WritableOperation:
        await self.initialize()
        return WritableOperation(self, local_descriptors)

    async def begin_read(
        self, remote_metadata: RdmaMetadata, local_descriptors: Descriptor | list[Descriptor]
    ) -> ReadOperation:
        await self.initialize()
        return ReadOperation(self, local_descriptors, remote_metadata)

    async def begin_write(
        self, local_descriptors: Descriptor | list[Descriptor], remote_metadata: RdmaMetadata
    ) -> WriteOperation:
        await self.initialize()
        return WriteOperation(self, local_descriptors, remote_metadata)

    @property
    def agent(self) -> Any:
        """NIXL's own agent, once connected."""
        if self._agent is None:
            raise RuntimeError("the connector is not connected; await its initialize()")
        return self._agent

    def register(self, descriptors: Sequence[Descriptor]) -> Any:
        """Register memory with NIXL; returns what `deregister` takes."""
        kind = descriptors[0].device.kind.nixl_mem_type
        return self.agent.register_memory([(each.ptr, each.size, each.device.id, "") for each in descriptors], kind)

    def deregister(self, registered: Any) -> None:
        self.agent.deregister_memory(registered)

    def expect(self, key: str) -> None:
        self._expected.add(key)

    def notified(self, key: str) -> bool:
        """Whether the other side has ended the operation with this key."""
        if key not in self._notified:
            for notifications in self.agent.get_new_notifs().values():
                self._notified.update(each.decode(errors="replace") for each in notifications)
            self._notified &= self._expected
        return key in self._notified

    def forget(self, key: str) -> None:
        self._expected.discard(key)
        self._notified.discard(key)

    def __repr__(self) -> str:
        return f"Connector(name={self.name!r}, hostname={self.hostname!r})"


def _make_agent(name: str) -> Any:
    try:
        from nixl._api import nixl_agent
    except ImportError as error:
        raise ImportError(
            f"NIXL is not installed ({error}): pip install --no-deps nixl nixl-cu12 numpy, or nixl-cu13 with CUDA 13"
        ) from error
    return nixl_agent(name)
