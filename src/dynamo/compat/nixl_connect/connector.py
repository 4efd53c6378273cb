"""Access to NIXL: one agent, whose memory other processes can read and write while an operation lasts."""

from __future__ import annotations

import socket

from dynamo.compat.nixl_connect.agent import NixlAgent
from dynamo.compat.nixl_connect.memory import Descriptor
from dynamo.compat.nixl_connect.metadata import RdmaMetadata
from dynamo.compat.nixl_connect.operations import ReadableOperation, ReadOperation, WritableOperation, WriteOperation


class Connector(NixlAgent):
    """Make one per process. Operations connect by themselves; `initialize` does it ahead of time."""

    def __init__(self, worker_id: str | None = None) -> None:
        super().__init__(worker_id)
        self.hostname = socket.gethostname()

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

    def __repr__(self) -> str:
        return f"Connector(name={self.name!r}, hostname={self.hostname!r})"
