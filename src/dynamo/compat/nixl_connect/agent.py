"""NIXL's agent of this process: the memory that others may read and write, and what they say when they are done."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any

from dynamo.compat.nixl_connect.memory import Descriptor


class NixlAgent:
    def __init__(self, worker_id: str | None = None) -> None:
        self.name = worker_id or f"dynamo-{uuid.uuid4().hex}"
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


def _make_agent(name: str) -> Any:
    try:
        from nixl._api import nixl_agent
    except ImportError as error:
        raise ImportError(
            f"NIXL is not installed ({error}): pip install --no-deps nixl nixl-cu12 numpy, or nixl-cu13 with CUDA 13"
        ) from error
    return nixl_agent(name)
