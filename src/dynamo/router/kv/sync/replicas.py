"""What other routers have sent to the same workers, and telling them what we did.

It counts as load, and where no events tell what is cached, as learned too. Told in batches, never acknowledged. So
each router says every few seconds that it is alive and what it still runs: ends that were lost are made good by that,
and of a router that has gone silent nothing is kept.
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
"""In one message: a hash takes 9 bytes, and NATS as it comes takes no message above 1 MiB."""
DELAY = 0.001
BEAT = 5.0
SILENT = 4 * BEAT
EXPIRY = 300.0
"""How long a booking counts of a router that never says what it runs, as earlier builds do."""

_Event = BookingAdded | BookingPrefillDone | BookingFreed


class Replicas:
    """`changed` is called when others' requests went on or ended."""

    def __init__(
        self,
        events: EventPlane,
        instances: InstanceSet,
        book: LoadBook,
        learned: ApproximateIndex | None,
        stats: RouterStats,
        changed: Callable[[], None],
    ) -> None:
        self.router_id = new_instance_id()
        self._events = events
        self._book = book
        self._learned = learned
        self._stats = stats
        self._changed = changed
        self._mine: dict[str, Place] = {}
        """Bookings told to others that have not ended."""
        self._places: set[Place] = set()
        self._others: dict[int, dict[str, float]] = {}
        """Bookings of each other router and when they came, oldest first."""
        self._alive: dict[int, float] = {}
        """When a router was last heard that says what it runs."""
        self._out: dict[Place, list[_Event]] = {}
        self._hashes = 0
        """Those in what waits to be told."""
        self._timer: asyncio.TimerHandle | None = None
        self._opened = False
        self._loop = asyncio.get_running_loop()
        self._decode = msgspec.msgpack.Decoder(BookingBatch).decode
        self._listening = Listening(events, instances, BOOKINGS, self._hear)
        self._forget = instances.follow(self._open)
        self._beating = self._loop.call_later(BEAT, self._beat)

    def _open(self, instance_id: int, instance: Instance | None) -> None:
        """Some planes lose the first message of a publisher: let that be an empty one."""
        if instance is not None and not self._opened:
            self._opened = True
            place = (instance.namespace, instance.component)
            self._publish(place, BookingBatch([]))

    async def close(self) -> None:
        self._forget()
        self._beating.cancel()
        self._flush()
        await self._listening.close()

    def added(
        self,
        place: Place,
        key: str,
        worker: WorkerRank,
        chain: Sequence[int],
        prompt_tokens: int,
        prefill_tokens: int,
        *,
        extra: bool,
        learn: bool,
    ) -> None:
        self._mine[key] = place
        self._places.add(place)
        hashes = list(chain[:MOST_HASHES])
        if self._hashes + len(hashes) > MOST_HASHES:
            self._flush()
        self._hashes += len(hashes)
        self._tell(place, BookingAdded(
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
        if place := self._mine.get(key):
            self._tell(place, BookingPrefillDone(router_id=self.router_id, request_id=key))

    def freed(self, key: str) -> None:
        if place := self._mine.pop(key, None):
            self._tell(place, BookingFreed(router_id=self.router_id, request_id=key))

    def _beat(self) -> None:
        """Say what we run."""
        self._beating = self._loop.call_later(BEAT, self._beat)
        self.expire(self._loop.time())
        self._flush()
        batch = BookingBatch([], self.router_id, list(self._mine))
        for place in self._places:
            self._publish(place, batch)

    def expire(self, now: float) -> None:
        """Forget what nobody answers for any more."""
        lost = [router for router, heard in self._alive.items() if now - heard >= SILENT]
        ended = {router: list(self._others.get(router, ())) for router in lost}
        for router in lost:
            del self._alive[router]
        for router in self._others.keys() - self._alive.keys() - ended.keys():
            ended[router] = [key for key, since in self._others[router].items() if now - since >= EXPIRY]
        if any([self._end(router, key) for router, keys in ended.items() for key in keys]):
            self._changed()

    def _tell(self, place: Place, event: _Event) -> None:
        waiting = self._out.setdefault(place, [])
        waiting.append(event)
        if len(waiting) >= BATCH:
            self._flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(DELAY, self._flush)

    def _flush(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        out, self._out, self._hashes = self._out, {}, 0
        for place, events in out.items():
            self._publish(place, BookingBatch(events, self.router_id))

    def _publish(self, place: Place, batch: BookingBatch) -> None:
        self._events.publish(subject(place, BOOKINGS), msgspec.msgpack.encode(batch))

    def _hear(self, data: bytes) -> None:
        try:
            batch = self._decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if not self._stats.malformed:
                log.warning("ignoring bookings that are none: %s; further ones are only counted", error)
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
            self._changed()

    def _end(self, router: int, request: str) -> bool:
        known = self._others.get(router, {})
        known.pop(request, None)
        if not known:
            self._others.pop(router, None)
        return self._book.free(_key(router, request))


def _key(router: int, request: str) -> str:
    """Our own keys are bare numbers: nobody's request id can be one of them."""
    return f"{router:x}/{request}"
