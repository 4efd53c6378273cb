"""The subjects that workers and routers publish on, and one subscription for each component of a set of instances."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from dynamo.protocols.errors import StartError
from dynamo.protocols.instance import Instance
from dynamo.runtime.events import EventPlane, Subscription
from dynamo.runtime.instances import InstanceSet

log = logging.getLogger(__name__)

KV_EVENTS = "kv-events"
KV_METRICS = "kv_metrics"
BOOKINGS = "active_sequences_events"
SNAPSHOT_ENDPOINT = "kv_snapshot"

LOAD_REPEATED = 5.0
"""Seconds after which a worker repeats its load though it has not changed: a message may have been lost."""

Place = tuple[str, str]
"""Namespace and component."""


def subject(place: Place, topic: str) -> str:
    return f"namespace.{place[0]}.component.{place[1]}.{topic}"


class Listening:
    """One subscription for each component that has, or had, an instance in the set."""

    def __init__(
        self, events: EventPlane, instances: InstanceSet, topic: str, receive: Callable[[bytes], None]
    ) -> None:
        self._events = events
        self._topic = topic
        self._receive = receive
        self._subscribing: dict[Place, asyncio.Task[Subscription | None]] = {}
        self._unfollow = instances.follow(self._changed)

    def _changed(self, instance_id: int, instance: Instance | None) -> None:
        if instance is None:
            return
        place = (instance.namespace, instance.component)
        if place not in self._subscribing:
            self._subscribing[place] = asyncio.create_task(self._subscribe(place))

    async def _subscribe(self, place: Place) -> Subscription | None:
        try:
            return await self._events.subscribe(subject(place, self._topic), lambda _, data: self._receive(data))
        except StartError as error:
            log.error("cannot listen to %s: %s", subject(place, self._topic), error)
            return None

    async def ready(self, place: Place) -> None:
        """Wait until the subscription to this component is in place."""
        await asyncio.shield(self._subscribing[place])

    async def close(self) -> None:
        self._unfollow()
        for task in self._subscribing.values():
            task.cancel()
        for ended in await asyncio.gather(*self._subscribing.values(), return_exceptions=True):
            if ended is not None and not isinstance(ended, BaseException):
                ended.unsubscribe()
