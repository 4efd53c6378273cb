"""Follows our own workers in discovery. The server of each is a frontend beside it: its address, and another port."""

from __future__ import annotations

from collections.abc import Callable

from dynamo.api.epp.endpoints import Endpoints, endpoint_of
from dynamo.runtime import DistributedRuntime
from dynamo.runtime.membership import Member, Membership


class FollowedWorkers:
    """Keeps `endpoints` up to date from `start` to `close`."""

    def __init__(
        self, runtime: DistributedRuntime, endpoints: Endpoints, port: int, serves: Callable[[str], bool]
    ) -> None:
        self._endpoints = endpoints
        self._port = port
        self._members = Membership(runtime.discovery, self._changed, cards=True, serves=serves)

    async def start(self) -> None:
        await self._members.start()

    async def close(self) -> None:
        await self._members.close()

    def _changed(self, before: Member, after: Member) -> None:
        if before.card is None and after.card is None:
            return  # another endpoint of the same worker
        if after.instance is None or after.card is None or not after.card.takes_requests:
            self._endpoints.leave(after.instance_id)
        elif after.instance.transport == "tcp":
            host = after.instance.address.rpartition(":")[0]
            self._endpoints.join(after.instance_id, endpoint_of(host, self._port))
