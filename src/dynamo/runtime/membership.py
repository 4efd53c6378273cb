"""The members of endpoints: their instance records and model cards in discovery, decoded and joined in one place."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator

from msgspec import Struct, structs

from dynamo.protocols.card import ModelCard
from dynamo.protocols.instance import Instance
from dynamo.runtime import records
from dynamo.runtime.discovery import Delete, Discovery, DiscoveryError, Put, Synced
from dynamo.runtime.names import CARDS, INSTANCES, EndpointId, split_key

log = logging.getLogger(__name__)


class Member(Struct, frozen=True):
    """One instance of an endpoint as discovery knows it: its address, its model card, or both."""

    endpoint: EndpointId
    instance_id: int
    instance: Instance | None = None
    card: ModelCard | None = None

    @property
    def path(self) -> str:
        return f"{self.endpoint.path}/{self.instance_id:x}"


class Membership:
    """Follows discovery from `start` to `close`. During an outage of discovery the last known members stay.

    `on_change(before, after)` is called with every member that joins, changes or leaves. One that joins has neither
    record before, one that leaves has neither after. The same record put again is no change; a malformed one is logged
    and counts as absent. `path` restricts it to the endpoint of that path, `serves` to some paths.
    """

    def __init__(
        self,
        discovery: Discovery,
        on_change: Callable[[Member, Member], None],
        *,
        path: str = "",
        cards: bool = False,
        serves: Callable[[str], bool] = lambda path: True,
    ) -> None:
        self._discovery = discovery
        self._on_change = on_change
        self._path = f"{path}/" if path else ""
        self._prefixes = (CARDS, INSTANCES) if cards else (INSTANCES,)
        self._serves = serves
        self._members: dict[str, Member] = {}
        self._watches: list[asyncio.Task[None]] = []

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def find(self, endpoint: EndpointId, instance_id: int) -> Member | None:
        return self._members.get(Member(endpoint, instance_id).path)

    async def start(self) -> None:
        """Return once all current members have been reported; raises DiscoveryError if discovery cannot be watched."""
        synced = [asyncio.get_running_loop().create_future() for _ in self._prefixes]
        self._watches = [
            asyncio.create_task(self._watch(prefix, future))
            for prefix, future in zip(self._prefixes, synced, strict=True)
        ]
        try:
            await asyncio.gather(*synced)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        watches, self._watches = self._watches, []
        for task in watches:
            task.cancel()
        await asyncio.gather(*watches, return_exceptions=True)

    async def _watch(self, prefix: str, synced: asyncio.Future[None]) -> None:
        try:
            async with contextlib.aclosing(self._discovery.watch(prefix + self._path)) as changes:
                async for change in changes:
                    match change:
                        case Put(key, value):
                            self._apply(prefix, key, value)
                        case Delete(key):
                            self._apply(prefix, key, None)
                        case Synced():
                            synced.set_result(None)
        except Exception as error:
            if synced.done():
                log.exception("the watch of %s failed: its members are no longer updated", prefix + self._path)
            else:
                synced.set_exception(error)
        finally:
            if not synced.done():
                synced.set_exception(DiscoveryError("discovery was closed before its records were read"))

    def _apply(self, prefix: str, key: str, value: bytes | None) -> None:
        if not self._serves(key.removeprefix(prefix).rpartition("/")[0]):
            return
        try:
            member = Member(*split_key(key))
        except ValueError as error:
            if value is not None:
                log.warning("ignoring the record %s: %s", key, error)
            return
        before = self._members.get(member.path, member)
        after = _with_record(before, prefix, key, value)
        if after == before:
            return
        if after.instance is None and after.card is None:
            del self._members[member.path]
        else:
            self._members[member.path] = after
        self._on_change(before, after)


def _with_record(member: Member, prefix: str, key: str, value: bytes | None) -> Member:
    """The member with the record that is now at `key`, or without it."""
    card, instance = None, None
    if value is not None:
        try:
            if prefix == CARDS:
                card = records.decode_card(value)
            else:
                instance = records.decode_instance(member.endpoint, member.instance_id, value)
        except ValueError as error:
            log.warning("ignoring the record %s: %s", key, error)
    return structs.replace(member, card=card) if prefix == CARDS else structs.replace(member, instance=instance)
