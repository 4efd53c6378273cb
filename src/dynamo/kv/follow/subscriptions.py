"""Subscriptions to what workers and other routers publish."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct, field

from dynamo.kv.messages import Cleared, ComponentName, KvChange, Removed, Stored, subject
from dynamo.protocols.errors import StartError
from dynamo.protocols.instance import Instance
from dynamo.runtime.events import EventPlane, Subscription
from dynamo.runtime.instances import InstanceSet

OK, BLOCK_NOT_FOUND, INVALID_BLOCK = "ok", "block_not_found", "invalid_block"
"""What became of a KV event, in ai-dynamo's words."""
_EVENT_TYPES: dict[type[KvChange], str] = {Stored: "stored", Removed: "removed", Cleared: "cleared"}


class FollowStats(Struct):
    events: Counter[tuple[str, str]] = field(
        default_factory=lambda: Counter(dict.fromkeys(((name, OK) for name in _EVENT_TYPES.values()), 0))
    )
    """KV events by their type and what became of them."""
    duplicate_stores: int = 0
    """KV events that stored only blocks which the worker was known to hold."""
    snapshots: int = 0
    """Snapshots requested from workers."""
    malformed: int = 0
    """Messages that could not be decoded."""

    def count_applied(self, change: KvChange, blocks: int) -> None:
        """Count a KV event that the index has applied; `blocks` is how many the rank gained or lost."""
        status = OK
        if type(change) is Stored:
            self.duplicate_stores += not blocks and bool(change.sequence_hashes)
        elif type(change) is Removed and blocks < len(change.sequence_hashes):
            status = BLOCK_NOT_FOUND
        self.events[_EVENT_TYPES[type(change)], status] += 1

    def count_rejected(self, change: KvChange) -> None:
        """Count a KV event that the index has rejected."""
        self.events[_EVENT_TYPES[type(change)], INVALID_BLOCK] += 1


log = logging.getLogger(__name__)

M = TypeVar("M")


class Subscriptions(Generic[M]):
    """One subscription to `topic` for each component that has, or had, an instance in the set.

    `receive` gets each message, decoded as `message_type`. Malformed ones are counted; `what` names them in the log.
    """

    def __init__(
        self,
        events: EventPlane,
        instances: InstanceSet,
        topic: str,
        message_type: type[M],
        receive: Callable[[M], None],
        stats: FollowStats,
        *,
        what: str,
    ) -> None:
        self._events = events
        self._topic = topic
        self._decode = msgspec.msgpack.Decoder(message_type).decode
        self._receive = receive
        self._stats = stats
        self._what = what
        self._subscribing: dict[ComponentName, asyncio.Task[Subscription | None]] = {}
        self._unfollow = instances.follow(self._changed)

    async def ready(self, component: ComponentName) -> None:
        """Wait until the subscription to this component is in place, or has failed."""
        await asyncio.shield(self._subscribing[component])

    async def close(self) -> None:
        self._unfollow()
        for task in self._subscribing.values():
            task.cancel()
        for ended in await asyncio.gather(*self._subscribing.values(), return_exceptions=True):
            if ended is not None and not isinstance(ended, BaseException):
                ended.unsubscribe()

    def _changed(self, instance_id: int, instance: Instance | None) -> None:
        component = (instance.namespace, instance.component) if instance else None
        if component and component not in self._subscribing:
            self._subscribing[component] = asyncio.create_task(self._subscribe(component))

    async def _subscribe(self, component: ComponentName) -> Subscription | None:
        try:
            return await self._events.subscribe(subject(component, self._topic), self._decode_and_receive)
        except StartError as error:
            log.error("cannot subscribe to %s: %s", subject(component, self._topic), error)
            return None

    def _decode_and_receive(self, _: str, data: bytes) -> None:
        try:
            message = self._decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            count_malformed(self._stats, self._what, error)
        else:
            self._receive(message)


def count_malformed(stats: FollowStats, what: str, error: Exception) -> None:
    if not stats.malformed:
        log.warning("ignoring malformed %s: %s; further ones are only counted", what, error)
    stats.malformed += 1
