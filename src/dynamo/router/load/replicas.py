"""Reservations exchanged with the other routers of the same workers.

Their requests count as load and, where workers publish no events, their prompts count as cached. Reservations are
published in batches and never acknowledged. So every few seconds each router announces that it is alive and which
requests it still runs: that corrects for lost messages, and the reservations of a silent router are dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from dynamo.kv.follow.subscriptions import Subscriptions
from dynamo.kv.index.approximate import ApproximateIndex
from dynamo.kv.messages import (
    RESERVATIONS,
    ComponentName,
    ReservationAdded,
    ReservationBatch,
    ReservationFreed,
    ReservationPrefillDone,
    WorkerRank,
    subject,
)
from dynamo.protocols.instance import Instance
from dynamo.router.load_book import LoadBook
from dynamo.router.stats import RouterStats
from dynamo.runtime.events import EventPlane
from dynamo.runtime.instances import InstanceSet
from dynamo.runtime.names import new_instance_id

MAX_EVENTS = 256
"""Per message."""
MAX_HASHES = 1 << 16
"""Per message: a hash takes 9 bytes, and NATS by default accepts no message above 1 MiB."""
FLUSH_SECONDS = 0.001
HEARTBEAT_SECONDS = 5.0
SILENT_SECONDS = 4 * HEARTBEAT_SECONDS
"""A router not heard from for this long is gone."""
EXPIRY_SECONDS = 300.0
"""How long a reservation counts whose router never announces its running requests, as earlier builds do."""

_Event = ReservationAdded | ReservationPrefillDone | ReservationFreed


class Replicas:
    """Publishes our reservations and applies the others', from `start` to `close`.

    `on_capacity_freed` is called when prompts of the others have been computed or their requests have ended.
    """

    def __init__(
        self,
        events: EventPlane,
        instances: InstanceSet,
        book: LoadBook,
        approximate: ApproximateIndex | None,
        stats: RouterStats,
        on_capacity_freed: Callable[[], None],
    ) -> None:
        self.router_id = new_instance_id()
        self._events = events
        self._instances = instances
        self._book = book
        self._approximate = approximate
        self._stats = stats
        self._on_capacity_freed = on_capacity_freed
        self._component_of: dict[int, ComponentName] = {}
        """The component of each instance: other routers subscribe to its reservations."""
        self._own: dict[str, ComponentName] = {}
        """Our reservations that were announced and have not ended."""
        self._announced: set[ComponentName] = set()
        self._others: dict[int, dict[str, float]] = {}
        """Reservations of each other router and when they arrived, oldest first."""
        self._alive: dict[int, float] = {}
        """When each router that announces its running requests was last heard from."""
        self._outgoing: dict[ComponentName, list[_Event]] = {}
        self._outgoing_hashes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._opened = False
        self._loop: asyncio.AbstractEventLoop
        self._subscriptions: Subscriptions[ReservationBatch]
        self._unfollow: Callable[[], None]
        self._heartbeat: asyncio.TimerHandle

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._subscriptions = Subscriptions(
            self._events, self._instances, RESERVATIONS, ReservationBatch, self._receive, self._stats, what="bookings"
        )
        self._unfollow = self._instances.follow(self._instance_changed)
        self._heartbeat = self._loop.call_later(HEARTBEAT_SECONDS, self._beat)

    async def close(self) -> None:
        self._unfollow()
        self._heartbeat.cancel()
        self._flush()
        await self._subscriptions.close()

    def _instance_changed(self, instance_id: int, instance: Instance | None) -> None:
        if instance is None:
            self._component_of.pop(instance_id, None)
            return
        component = self._component_of[instance_id] = (instance.namespace, instance.component)
        if not self._opened:
            # Some planes lose a publisher's first message: let that be an empty one.
            self._opened = True
            self._publish(component, ReservationBatch([]))

    def added(
        self,
        key: str,
        worker: WorkerRank,
        hashes: Sequence[int],
        prompt_tokens: int,
        prefill_tokens: int,
        *,
        extra: bool,
        learn: bool,
    ) -> None:
        component = self._own[key] = self._component_of[worker.worker_id]
        self._announced.add(component)
        hashes = hashes[:MAX_HASHES]
        if self._outgoing_hashes + len(hashes) > MAX_HASHES:
            self._flush()
        self._outgoing_hashes += len(hashes)
        self._send(component, ReservationAdded(
            router_id=self.router_id,
            request_id=key,
            worker_id=worker.worker_id,
            dp_rank=worker.dp_rank,
            prompt_tokens=prompt_tokens,
            prefill_tokens=prefill_tokens,
            sequence_hashes=list(hashes),
            extra=extra,
            learn=learn,
        ))  # fmt: skip

    def prefill_done(self, key: str) -> None:
        if component := self._own.get(key):
            self._send(component, ReservationPrefillDone(router_id=self.router_id, request_id=key))

    def freed(self, key: str) -> None:
        if component := self._own.pop(key, None):
            self._send(component, ReservationFreed(router_id=self.router_id, request_id=key))

    def _beat(self) -> None:
        """Announce our running requests."""
        self._heartbeat = self._loop.call_later(HEARTBEAT_SECONDS, self._beat)
        self.expire(self._loop.time())
        self._flush()
        batch = ReservationBatch([], self.router_id, list(self._own))
        for component in self._announced:
            self._publish(component, batch)

    def expire(self, now: float) -> None:
        """Drop the reservations of routers that have gone silent."""
        lost = [router for router, heard in self._alive.items() if now - heard >= SILENT_SECONDS]
        ended = {router: list(self._others.get(router, ())) for router in lost}
        for router in lost:
            del self._alive[router]
        for router in self._others.keys() - self._alive.keys() - ended.keys():
            ended[router] = [key for key, since in self._others[router].items() if now - since >= EXPIRY_SECONDS]
        if any([self._end(router, key) for router, keys in ended.items() for key in keys]):
            self._on_capacity_freed()

    def _send(self, component: ComponentName, event: _Event) -> None:
        batch = self._outgoing.setdefault(component, [])
        batch.append(event)
        if len(batch) >= MAX_EVENTS:
            self._flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(FLUSH_SECONDS, self._flush)

    def _flush(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        out, self._outgoing, self._outgoing_hashes = self._outgoing, {}, 0
        for component, events in out.items():
            self._publish(component, ReservationBatch(events, self.router_id))

    def _publish(self, component: ComponentName, batch: ReservationBatch) -> None:
        self._events.publish(subject(component, RESERVATIONS), msgspec.msgpack.encode(batch))

    def _receive(self, batch: ReservationBatch) -> None:
        now = self._loop.time()
        freed = False
        for event in batch.events:
            router = event.router_id
            if router == self.router_id:
                continue
            match event:
                case ReservationAdded():
                    worker = WorkerRank(event.worker_id, event.dp_rank)
                    reserved = self._book.reserve(
                        _key(router, event.request_id),
                        worker,
                        event.sequence_hashes,
                        now=now,
                        prompt_tokens=event.prompt_tokens,
                        prefill_tokens=event.prefill_tokens,
                        extra=event.extra,
                    )
                    if reserved:
                        self._others.setdefault(router, {})[event.request_id] = now
                        self._stats.replica_requests += 1
                        if self._approximate is not None and event.learn:
                            self._approximate.record(worker, event.sequence_hashes, now)
                case ReservationPrefillDone():
                    freed |= self._book.first_token(_key(router, event.request_id))
                case ReservationFreed():
                    freed |= self._end(router, event.request_id)
        if batch.router_id is not None and batch.router_id != self.router_id:
            self._alive[batch.router_id] = now
            if batch.running is not None:
                ended = self._others.get(batch.router_id, {}).keys() - {*batch.running}
                freed |= any([self._end(batch.router_id, request) for request in ended])
        if freed:
            self._on_capacity_freed()

    def _end(self, router: int, request: str) -> bool:
        known = self._others.get(router, {})
        known.pop(request, None)
        if not known:
            self._others.pop(router, None)
        return self._book.free(_key(router, request))


def _key(router: int, request: str) -> str:
    """Our own keys are bare numbers, so no key of another router can equal one."""
    return f"{router:x}/{request}"
