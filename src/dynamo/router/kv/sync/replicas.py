"""Bookings exchanged with the other routers of the same workers.

Their requests count as load and, where workers publish no events, are learned as cached. Bookings are published in
batches and never acknowledged. So each router announces every few seconds that it is alive and what it still runs: that
corrects for lost messages, and the bookings of a router that has gone silent are dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import msgspec

from dynamo.kv.subjects import BOOKINGS, Listening, Place, subject
from dynamo.protocols.instance import Instance
from dynamo.protocols.kv import BookingAdded, BookingBatch, BookingFreed, BookingPrefillDone, WorkerRank
from dynamo.router.kv.index.approximate import ApproximateIndex
from dynamo.router.kv.load.book import LoadBook
from dynamo.router.stats import RouterStats
from dynamo.runtime.events import EventPlane
from dynamo.runtime.instances import InstanceSet
from dynamo.runtime.names import new_instance_id

log = logging.getLogger(__name__)

BATCH = 256
MOST_HASHES = 1 << 16
"""In one message: a hash takes 9 bytes, and NATS by default takes no message above 1 MiB."""
DELAY = 0.001
BEAT = 5.0
SILENT = 4 * BEAT
EXPIRY = 300.0
"""How long a booking counts whose router never announces what it runs, as earlier builds do."""

_Event = BookingAdded | BookingPrefillDone | BookingFreed


class Replicas:
    """Publishes our bookings and applies the others', from `start` to `close`.

    `on_eased` is called when the others' prompts were computed or their requests have ended.
    """

    def __init__(
        self,
        events: EventPlane,
        instances: InstanceSet,
        book: LoadBook,
        learned: ApproximateIndex | None,
        stats: RouterStats,
        on_eased: Callable[[], None],
    ) -> None:
        self.router_id = new_instance_id()
        self._events = events
        self._instances = instances
        self._book = book
        self._learned = learned
        self._stats = stats
        self._on_eased = on_eased
        self._place_of: dict[int, Place] = {}
        """Where each instance belongs, which is where the others listen."""
        self._own: dict[str, Place] = {}
        """Our bookings that were announced and have not ended."""
        self._announced: set[Place] = set()
        self._others: dict[int, dict[str, float]] = {}
        """Bookings of each other router and when they came, oldest first."""
        self._alive: dict[int, float] = {}
        """When each router that announces what it runs was last heard."""
        self._outgoing: dict[Place, list[_Event]] = {}
        self._outgoing_hashes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._opened = False
        self._decode = msgspec.msgpack.Decoder(BookingBatch).decode
        self._loop: asyncio.AbstractEventLoop
        self._listening: Listening
        self._unfollow: Callable[[], None]
        self._heartbeat: asyncio.TimerHandle

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._listening = Listening(self._events, self._instances, BOOKINGS, self._receive)
        self._unfollow = self._instances.follow(self._instance_changed)
        self._heartbeat = self._loop.call_later(BEAT, self._beat)

    async def close(self) -> None:
        self._unfollow()
        self._heartbeat.cancel()
        self._flush()
        await self._listening.close()

    def _instance_changed(self, instance_id: int, instance: Instance | None) -> None:
        if instance is None:
            self._place_of.pop(instance_id, None)
            return
        place = self._place_of[instance_id] = (instance.namespace, instance.component)
        if not self._opened:
            # Some planes lose a publisher's first message: let that be an empty one.
            self._opened = True
            self._publish(place, BookingBatch([]))

    def added(
        self,
        key: str,
        worker: WorkerRank,
        chain: Sequence[int],
        prompt_tokens: int,
        prefill_tokens: int,
        *,
        extra: bool,
        learn: bool,
    ) -> None:
        place = self._own[key] = self._place_of[worker.worker_id]
        self._announced.add(place)
        hashes = list(chain[:MOST_HASHES])
        if self._outgoing_hashes + len(hashes) > MOST_HASHES:
            self._flush()
        self._outgoing_hashes += len(hashes)
        self._send(place, BookingAdded(
            router_id=self.router_id,
            request_id=key,
            worker_id=worker.worker_id,
            dp_rank=worker.dp_rank,
            prompt_tokens=prompt_tokens,
            prefill_tokens=prefill_tokens,
            sequence_hashes=hashes,
            extra=extra,
            learn=learn,
        ))  # fmt: skip

    def prefill_done(self, key: str) -> None:
        if place := self._own.get(key):
            self._send(place, BookingPrefillDone(router_id=self.router_id, request_id=key))

    def freed(self, key: str) -> None:
        if place := self._own.pop(key, None):
            self._send(place, BookingFreed(router_id=self.router_id, request_id=key))

    def _beat(self) -> None:
        """Announce what we run."""
        self._heartbeat = self._loop.call_later(BEAT, self._beat)
        self.expire(self._loop.time())
        self._flush()
        batch = BookingBatch([], self.router_id, list(self._own))
        for place in self._announced:
            self._publish(place, batch)

    def expire(self, now: float) -> None:
        """Drop the bookings of routers that have gone silent."""
        lost = [router for router, heard in self._alive.items() if now - heard >= SILENT]
        ended = {router: list(self._others.get(router, ())) for router in lost}
        for router in lost:
            del self._alive[router]
        for router in self._others.keys() - self._alive.keys() - ended.keys():
            ended[router] = [key for key, since in self._others[router].items() if now - since >= EXPIRY]
        if any([self._end(router, key) for router, keys in ended.items() for key in keys]):
            self._on_eased()

    def _send(self, place: Place, event: _Event) -> None:
        batch = self._outgoing.setdefault(place, [])
        batch.append(event)
        if len(batch) >= BATCH:
            self._flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(DELAY, self._flush)

    def _flush(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        out, self._outgoing, self._hashes = self._outgoing, {}, 0
        for place, events in out.items():
            self._publish(place, BookingBatch(events, self.router_id))

    def _publish(self, place: Place, batch: BookingBatch) -> None:
        self._events.publish(subject(place, BOOKINGS), msgspec.msgpack.encode(batch))

    def _receive(self, data: bytes) -> None:
        try:
            batch = self._decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if not self._stats.malformed:
                log.warning("ignoring malformed bookings: %s; further ones are only counted", error)
            self._stats.malformed += 1
            return
        now = self._loop.time()
        eased = False
        for event in batch.events:
            router = event.router_id
            if router == self.router_id:
                continue
            match event:
                case BookingAdded():
                    worker = WorkerRank(event.worker_id, event.dp_rank)
                    booked = self._book.book(
                        _key(router, event.request_id),
                        worker,
                        event.sequence_hashes,
                        now=now,
                        prompt_tokens=event.prompt_tokens,
                        prefill_tokens=event.prefill_tokens,
                        extra=event.extra,
                    )
                    if booked:
                        self._others.setdefault(router, {})[event.request_id] = now
                        self._stats.heard += 1
                        if self._learned is not None and event.learn:
                            self._learned.record(worker, event.sequence_hashes, now)
                case BookingPrefillDone():
                    eased |= self._book.first_token(_key(router, event.request_id))
                case BookingFreed():
                    eased |= self._end(router, event.request_id)
        if batch.router_id is not None and batch.router_id != self.router_id:
            self._alive[batch.router_id] = now
            if batch.running is not None:
                ended = self._others.get(batch.router_id, {}).keys() - {*batch.running}
                eased |= any([self._end(batch.router_id, request) for request in ended])
        if eased:
            self._on_eased()

    def _end(self, router: int, request: str) -> bool:
        known = self._others.get(router, {})
        known.pop(request, None)
        if not known:
            self._others.pop(router, None)
        return self._book.free(_key(router, request))


def _key(router: int, request: str) -> str:
    """Our own keys are bare numbers, so no key of another router can equal one."""
    return f"{router:x}/{request}"
