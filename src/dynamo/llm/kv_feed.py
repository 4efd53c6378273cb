"""What one instance tells routers about its KV blocks: one subject and one snapshot endpoint for all its ranks.

Every event is applied to a book here before it goes out, and a snapshot is that book at its last event. The book is an
index, and what that refuses or already knows is not sent: so a router that misses nothing never has to refuse either.
Where a source is exact, a plain list of what it holds is book enough.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import msgspec
from msgspec import structs

from dynamo.kv.subjects import KV_EVENTS, subject
from dynamo.llm.kv_held import Held
from dynamo.protocols.errors import InvalidArgument
from dynamo.protocols.kv import (
    Cleared,
    KvSnapshot,
    Removed,
    RouterEvent,
    RouterEventBatch,
    SnapshotRequest,
    Stored,
    Tier,
    TierSnapshot,
)
from dynamo.router.kv import Index, Rejected, WorkerRank
from dynamo.router.kv.sync.follow import SNAPSHOT_ENDPOINT
from dynamo.runtime import Component, Endpoint
from dynamo.runtime.handler import GeneratorHandler

MAX_EVENTS = 128
MAX_BLOCKS = 8192
"""Of one message, and so of one event."""
SNAPSHOT_BLOCKS = 500_000
"""Of one item of a snapshot: 27 bytes each, far below what a frame may hold."""

Change = Stored | Removed | Cleared


def component_of(place: Endpoint | Component) -> Component:
    if isinstance(place, Component):
        return place
    if isinstance(place, Endpoint):
        return Component(place.runtime, place.id.namespace, place.id.component)
    raise TypeError(f"expected an Endpoint or a Component, not {type(place).__name__}")


def kv_feed(place: Endpoint | Component) -> KvFeed:
    """The feed of this runtime's instance of the component, begun at the first asking."""
    component = component_of(place)
    key = (KvFeed, component.namespace, component.name)
    return component.runtime.shared(key, lambda: KvFeed(component))


class KvFeed:
    """Lives as long as the runtime. Use it on the runtime's event loop only."""

    def __init__(self, component: Component) -> None:
        self.worker_id = component.runtime.instance_id
        self._index = Index()
        self._component = component
        self._subject = subject((component.namespace, component.name), KV_EVENTS)
        self._plane = component.runtime.events
        self._loop = asyncio.get_running_loop()
        self._ranks: dict[WorkerRank, RankFeed] = {}
        self._pending: list[RouterEvent] = []
        self._flush_timer: asyncio.Handle | None = None
        self._flush_at = 0.0
        self._encode = msgspec.msgpack.Encoder().encode
        self._settled = asyncio.Event()
        component.runtime.own(self._serve_snapshots(), f"the endpoint {SNAPSHOT_ENDPOINT}")

    async def ready(self) -> None:
        """Wait until routers can find the snapshot endpoint, or it has failed to come up."""
        await self._settled.wait()

    def rank(self, dp_rank: int = 0, worker_id: int | None = None, *, exact: bool = False) -> RankFeed:
        """An `exact` source's events are not checked (`dynamo.engines.base.ExactKvSource` says what it promises)."""
        worker = WorkerRank(self.worker_id if worker_id is None else worker_id, dp_rank)
        if worker not in self._ranks:
            self._ranks[worker] = RankFeed(self, worker, Held() if exact else self._index)
        return self._ranks[worker]

    def snapshot(self, worker_id: int, dp_rank: int = 0) -> KvSnapshot:
        worker = WorkerRank(worker_id, dp_rank)
        rank = self._ranks.get(worker)
        if rank is None and worker_id != self.worker_id:
            raise InvalidArgument(f"this is worker {self.worker_id}, not {worker_id}")
        return KvSnapshot(
            worker_id=worker_id,
            dp_rank=dp_rank,
            last_event_id=rank.last_event_id if rank else None,
            tiers=rank.book.snapshot(worker) if rank else [],
        )

    def queue(self, event: RouterEvent, delay: float) -> None:
        """Send with the others of this loop turn, or of the next `delay` seconds."""
        self._pending.append(event)
        if self._flush_timer is None:
            if delay:
                self._flush_at = self._loop.time() + delay
                self._flush_timer = self._loop.call_at(self._flush_at, self.flush)
            else:
                self._flush_at = 0.0
                self._flush_timer = self._loop.call_soon(self.flush)
        elif self._flush_at and (not delay or len(self._pending) >= MAX_EVENTS):
            self._flush_timer.cancel()
            self._flush_at = 0.0
            self._flush_timer = self._loop.call_soon(self.flush)

    def flush(self) -> None:
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        if self._pending:
            pending, self._pending = self._pending, []
            for events in messages(pending):
                self._plane.publish(self._subject, self._encode(RouterEventBatch(events)))

    async def _serve_snapshots(self) -> None:
        handler = GeneratorHandler(self._tell)
        endpoint = self._component.endpoint(SNAPSHOT_ENDPOINT)
        try:
            await self._component.runtime.start()
            await self._plane.announce()
            await endpoint.serve(
                handler, SnapshotRequest, graceful_shutdown=False, auxiliary=True, on_found=self._settled.set
            )
        finally:
            self._settled.set()
            await handler.close()

    async def _tell(self, request: SnapshotRequest) -> AsyncIterator[KvSnapshot]:
        snapshot = self.snapshot(request.worker_id, request.dp_rank)
        for part in parts(snapshot, SNAPSHOT_BLOCKS) if request.parts else (snapshot,):
            yield part


class RankFeed:
    """One rank's events, numbered from 0 without gaps."""

    def __init__(self, feed: KvFeed, worker: WorkerRank, book: Index | Held) -> None:
        self.worker = worker
        self.book = book
        self.delay = 0.0
        """Seconds an event may wait for others to be sent with."""
        self._feed = feed
        self._next_id = 0

    @property
    def last_event_id(self) -> int | None:
        return self._next_id - 1 if self._next_id else None

    def tell(self, data: Change, tier: Tier = Tier.Device) -> str | None:
        """Number and send one change; returns why it was refused, if it was."""
        if blocks_of(data) > MAX_BLOCKS:
            refusals = [self._tell(piece, tier) for piece in pieces(data)]
            return next((refusal for refusal in refusals if refusal), None)
        return self._tell(data, tier)

    def _tell(self, data: Change, tier: Tier) -> str | None:
        event = RouterEvent(
            worker_id=self.worker.worker_id, dp_rank=self.worker.dp_rank, event_id=self._next_id, data=data, tier=tier
        )
        outcome = self.book.apply(event)
        if isinstance(outcome, Rejected):
            return outcome.reason
        if outcome.changed:
            self._next_id += 1
            self._feed.queue(event, self.delay)
        return None


def messages(events: list[RouterEvent]) -> Iterator[list[RouterEvent]]:
    """The events in order, cut into lists that one message may hold."""
    start = blocks = 0
    for at, event in enumerate(events):
        size = blocks_of(event.data)
        if at > start and (at - start == MAX_EVENTS or blocks + size > MAX_BLOCKS):
            yield events[start:at]
            start, blocks = at, 0
        blocks += size
    yield events[start:]


def parts(snapshot: KvSnapshot, most: int) -> Iterator[KvSnapshot]:
    """A snapshot as several of at most so many blocks."""
    if sum([len(tier.block_hashes) for tier in snapshot.tiers]) <= most:
        yield snapshot
        return
    for tier in snapshot.tiers:
        for start in range(0, len(tier.block_hashes), most):
            some = slice(start, start + most)
            part = TierSnapshot(
                tier=tier.tier,
                block_hashes=tier.block_hashes[some],
                sequence_hashes=tier.sequence_hashes[some],
                parents=tier.parents[some],
            )
            yield structs.replace(snapshot, tiers=[part])


def pieces(data: Change) -> Iterator[Change]:
    """A change of many blocks as several of at most `MAX_BLOCKS`."""
    match data:
        case Stored():
            for start in range(0, len(data.block_hashes), MAX_BLOCKS):
                end = start + MAX_BLOCKS
                parent = data.block_hashes[start - 1] if start else data.parent_hash
                yield Stored(data.block_hashes[start:end], data.tokens_hashes[start:end], parent)
        case Removed():
            for start in range(0, len(data.block_hashes), MAX_BLOCKS):
                yield Removed(data.block_hashes[start : start + MAX_BLOCKS])
        case Cleared():
            yield data


def blocks_of(data: Change) -> int:
    return 0 if isinstance(data, Cleared) else len(data.block_hashes)
