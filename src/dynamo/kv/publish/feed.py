"""What one instance publishes about its KV blocks: one subject and one snapshot endpoint for all its ranks.

Every change is recorded here before it is sent, so a snapshot is exactly the cache after its last event.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import msgspec
from msgspec import structs

from dynamo.kv.messages import (
    KV_EVENTS,
    KV_WIRE_VERSION,
    SNAPSHOT_ENDPOINT,
    Cleared,
    KvChange,
    KvSnapshot,
    Removed,
    RouterEvent,
    RouterEventBatch,
    SnapshotRequest,
    Stored,
    Tier,
    TierSnapshot,
    WorkerRank,
    subject,
)
from dynamo.protocols.errors import InvalidArgument
from dynamo.runtime import Component, Endpoint
from dynamo.runtime.handler import GeneratorHandler

MAX_EVENTS = 128
MAX_BLOCKS = 8192
"""The most blocks per message, and so per event."""
SNAPSHOT_BLOCKS = 500_000
"""The blocks per item of a snapshot: 18 bytes each, far below what a frame may hold."""


def component_of(place: Endpoint | Component) -> Component:
    if isinstance(place, Component):
        return place
    if isinstance(place, Endpoint):
        return Component(place.runtime, place.id.namespace, place.id.component)
    raise TypeError(f"expected an Endpoint or a Component, not {type(place).__name__}")


def kv_feed(place: Endpoint | Component) -> KvFeed:
    """The feed of this runtime's instance of the component, created on first use."""
    component = component_of(place)
    key = (KvFeed, component.namespace, component.name)
    return component.runtime.shared(key, lambda: KvFeed(component))


class KvFeed:
    """Lives as long as the runtime. Use it on the runtime's event loop only."""

    def __init__(self, component: Component) -> None:
        self.worker_id = component.runtime.instance_id
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

    def rank(self, dp_rank: int = 0, worker_id: int | None = None) -> RankFeed:
        worker = WorkerRank(self.worker_id if worker_id is None else worker_id, dp_rank)
        if worker not in self._ranks:
            self._ranks[worker] = RankFeed(self, worker)
        return self._ranks[worker]

    def snapshot(self, worker_id: int, dp_rank: int = 0) -> KvSnapshot:
        rank = self._ranks.get(WorkerRank(worker_id, dp_rank))
        if rank is None and worker_id != self.worker_id:
            raise InvalidArgument(f"this is worker {self.worker_id}, not {worker_id}")
        return KvSnapshot(
            version=KV_WIRE_VERSION,
            worker_id=worker_id,
            dp_rank=dp_rank,
            last_event_id=rank.last_event_id if rank else None,
            tiers=rank.blocks() if rank else [],
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
                batch = RouterEventBatch(version=KV_WIRE_VERSION, events=events)
                self._plane.publish(self._subject, self._encode(batch))

    async def _serve_snapshots(self) -> None:
        handler = GeneratorHandler(self._answer)
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

    async def _answer(self, request: SnapshotRequest) -> AsyncIterator[KvSnapshot]:
        snapshot = self.snapshot(request.worker_id, request.dp_rank)
        for part in parts(snapshot, SNAPSHOT_BLOCKS) if request.parts else (snapshot,):
            yield part


class RankFeed:
    """One rank's events, numbered from 0 without gaps, and the blocks it holds after the last of them."""

    def __init__(self, feed: KvFeed, worker: WorkerRank) -> None:
        self.worker = worker
        self.delay = 0.0
        """Seconds an event may wait for others to be sent with."""
        self._feed = feed
        self._next_id = 0
        self._parents: dict[Tier, dict[int, int | None]] = {tier: {} for tier in Tier}
        """Per tier the parent of each block held, in order of arrival."""
        self._on_device = self._parents[Tier.Device]

    @property
    def last_event_id(self) -> int | None:
        return self._next_id - 1 if self._next_id else None

    def blocks(self) -> list[TierSnapshot]:
        return [
            TierSnapshot(tier=tier, sequence_hashes=list(parents), parents=list(parents.values()))
            for tier, parents in self._parents.items()
            if parents
        ]

    def publish(self, change: KvChange, tier: Tier = Tier.Device) -> None:
        """Record, number and send one change; one that says nothing is not sent."""
        if isinstance(change, Cleared):
            if not any(self._parents.values()):
                return
            for parents in self._parents.values():
                parents.clear()
            self._send(change, tier)
            return
        hashes = change.sequence_hashes
        if not hashes:
            return
        # Hashing an enum member costs more than the rest of this: the busiest tier has its own name.
        parents = self._on_device if tier is Tier.Device else self._parents[tier]
        if isinstance(change, Stored):
            parents.update(zip(hashes, (change.parent, *hashes), strict=False))
        else:
            for block in hashes:
                parents.pop(block, None)
        if len(hashes) <= MAX_BLOCKS:
            self._send(change, tier)
        else:
            for piece in pieces(change):
                self._send(piece, tier)

    def _send(self, change: KvChange, tier: Tier) -> None:
        worker_id, dp_rank = self.worker
        event = RouterEvent(worker_id=worker_id, dp_rank=dp_rank, event_id=self._next_id, data=change, tier=tier)
        self._next_id += 1
        self._feed.queue(event, self.delay)


def messages(events: list[RouterEvent]) -> Iterator[list[RouterEvent]]:
    """The events in order, cut into lists that fit into one message."""
    start = blocks = 0
    for at, event in enumerate(events):
        size = 0 if isinstance(event.data, Cleared) else len(event.data.sequence_hashes)
        if at > start and (at - start == MAX_EVENTS or blocks + size > MAX_BLOCKS):
            yield events[start:at]
            start, blocks = at, 0
        blocks += size
    yield events[start:]


def parts(snapshot: KvSnapshot, most: int) -> Iterator[KvSnapshot]:
    """A snapshot as several of at most `most` blocks."""
    if sum([len(tier.sequence_hashes) for tier in snapshot.tiers]) <= most:
        yield snapshot
        return
    for tier in snapshot.tiers:
        for start in range(0, len(tier.sequence_hashes), most):
            some = slice(start, start + most)
            part = structs.replace(tier, sequence_hashes=tier.sequence_hashes[some], parents=tier.parents[some])
            yield structs.replace(snapshot, tiers=[part])


def pieces(change: Stored | Removed) -> Iterator[Stored | Removed]:
    """A change of many blocks as several of at most `MAX_BLOCKS`."""
    hashes = change.sequence_hashes
    for start in range(0, len(hashes), MAX_BLOCKS):
        some = hashes[start : start + MAX_BLOCKS]
        if isinstance(change, Stored):
            yield Stored(some, hashes[start - 1] if start else change.parent)
        else:
            yield Removed(some)
