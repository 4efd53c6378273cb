"""What other routers have sent to the same workers, and telling them what we did.

It counts as load, and where no events tell what is cached, as learned too.
Told in batches, never acknowledged. An end that gets lost is made good by expiry.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import msgspec

from dynamo.protocols.instance import Instance
from dynamo.protocols.kv import BookingAdded, BookingBatch, BookingFreed, BookingPrefillDone
from dynamo.router.kv.approximate import ApproximateIndex
from dynamo.router.kv.load import LoadBook
from dynamo.router.kv.slots import Worker
from dynamo.router.stats import RouterStats
from dynamo.router.subjects import BOOKINGS, Listening, Place, subject
from dynamo.runtime.events import EventPlane
from dynamo.runtime.instances import InstanceSet
from dynamo.runtime.names import new_instance_id

log = logging.getLogger(__name__)

BATCH = 256
DELAY = 0.001
EXPIRY = 300.0

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
        self._others: dict[str, float] = {}
        """Bookings of other routers and when they came, oldest first."""
        self._out: dict[Place, list[_Event]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._opened = False
        self._loop = asyncio.get_running_loop()
        self._decode = msgspec.msgpack.Decoder(BookingBatch).decode
        self._listening = Listening(events, instances, BOOKINGS, self._hear)
        self._forget = instances.follow(self._open)

    def _open(self, instance_id: int, instance: Instance | None) -> None:
        """Some planes lose the first message of a publisher: let that be an empty one."""
        if instance is not None and not self._opened:
            self._opened = True
            place = (instance.namespace, instance.component)
            self._events.publish(subject(place, BOOKINGS), msgspec.msgpack.encode(BookingBatch([])))

    async def close(self) -> None:
        self._forget()
        self._flush()
        await self._listening.close()

    def added(
        self,
        place: Place,
        key: str,
        worker: Worker,
        chain: Sequence[int],
        prompt_tokens: int,
        prefill_tokens: int,
        *,
        extra: bool,
    ) -> None:
        self._tell(place, BookingAdded(
            router_id=self.router_id,
            request_id=key,
            worker_id=worker.worker_id,
            dp_rank=worker.dp_rank,
            prompt_tokens=prompt_tokens,
            prefill_tokens=prefill_tokens,
            sequence_hashes=list(chain),
            extra=extra,
        ))  # fmt: skip

    def prefill_done(self, place: Place, key: str) -> None:
        self._tell(place, BookingPrefillDone(router_id=self.router_id, request_id=key))

    def freed(self, place: Place, key: str) -> None:
        self._tell(place, BookingFreed(router_id=self.router_id, request_id=key))

    def expire(self, now: float) -> None:
        for key, since in list(self._others.items()):
            if now - since < EXPIRY:
                break
            del self._others[key]
            self._book.free(key)

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
        out, self._out = self._out, {}
        for place, events in out.items():
            self._events.publish(subject(place, BOOKINGS), msgspec.msgpack.encode(BookingBatch(events)))

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
            if event.router_id == self.router_id:
                continue
            # Our own keys are bare numbers: nobody's request id can be one of them.
            key = f"{event.router_id:x}/{event.request_id}"
            match event:
                case BookingAdded():
                    worker = Worker(event.worker_id, event.dp_rank)
                    booked = self._book.book(
                        key,
                        worker,
                        event.sequence_hashes,
                        now=now,
                        prompt_tokens=event.prompt_tokens,
                        prefill_tokens=event.prefill_tokens,
                        extra=event.extra,
                    )
                    if booked:
                        self._others[key] = now
                        self._stats.heard += 1
                        if self._learned is not None:
                            self._learned.record(worker, event.sequence_hashes, now)
                case BookingPrefillDone():
                    eased |= self._book.first_token(key)
                case BookingFreed():
                    self._others.pop(key, None)
                    eased |= self._book.free(key)
        if eased:
            self._changed()
