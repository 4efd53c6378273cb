"""The router of one model: its instances, and the policy that chooses among them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from dynamo.protocols.errors import InvalidRequest
from dynamo.router.policy import Policy
from dynamo.runtime.instances import InstanceSet
from dynamo.runtime.plane.base import Channel


class Router:
    def __init__(self, instances: InstanceSet, policy: Policy) -> None:
        self.instances = instances
        self._policy = policy

    async def open(
        self, request: Any, *, pinned: int | None = None, avoid: Collection[int] = ()
    ) -> tuple[int, Channel]:
        """An instance for this request and the open way to it; a pinned one is taken whatever its state."""
        if pinned is not None:
            if pinned not in self.instances:
                message = f"there is no instance {pinned} of {self.instances.name} (any more)."
                raise InvalidRequest(message, "nvext.backend_instance_id", "instance_not_found")
            channel = self.instances.channel(pinned)
            if not channel.ready:
                await channel.open()
            return pinned, channel
        return await self.instances.open(lambda candidates: self._policy.choose(request, candidates), avoid)
