"""Keeps the index true to what the workers hold, over a network that loses events.

Events of a rank are numbered. A gap, a new worker or an event that does not fit leads to a snapshot from the worker;
what arrives meanwhile waits and is applied after it. What numbers cannot show, a loss at the very end, is found in two
ways: a prompt that a worker has computed must be in its cache a moment later, and ranks that are silent are asked
again, ever more rarely.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from dynamo.kv.subjects import KV_EVENTS, Listening, Place
from dynamo.protocols.errors import DynamoException
from dynamo.protocols.instance import Instance
from dynamo.protocols.kv import KvSnapshot, RouterEvent, RouterEventBatch, SnapshotRequest
from dynamo.router.kv.index.index import Index, Rejected
from dynamo.router.kv.slots import WorkerRank
from dynamo.router.kv.sync.ask import ask
from dynamo.router.kv.sync.cursor import Cursor, Order
from dynamo.router.stats import RouterStats
from dynamo.runtime import DistributedRuntime, EndpointId
from dynamo.runtime.client import Client
from dynamo.runtime.instances import InstanceSet

log = logging.getLogger(__name__)

SNAPSHOT_ENDPOINT = "kv_snapshot"


class FollowConfig(Struct, frozen=True, kw_only=True):
    """Seconds, where it is a time."""

    timeout: float = 30.0
    """For one snapshot."""
    concurrent: int = 16
    """Snapshots asked for at once."""
    buffered: int = 1024
    """Events of a rank that wait for its snapshot; beyond, the oldest are lost and another snapshot is needed."""
    retry: float = 1.0
    """Before a snapshot that failed is asked for again; doubles up to `longest`."""
    patience: float = 0.25
    """How long a computed prompt may be missing from its worker's cache, or a snapshot not fit the events after it.

    Quadruples up to `longest` each time, until neither happened for twice that: some prompts are never cached.
    """
    quiet: float = 30.0
    """A rank that was silent for so long is asked; doubles up to 20 times that while there is nothing new."""
    longest: float = 30.0
    wrong_hashes: int = 3
    """So many computed prompts in a row missing, though the worker does hold blocks: its hashes are not ours."""


class _Rank:
    """What is known of one rank's stream of events."""

    def __init__(self, worker: WorkerRank, place: Place, config: FollowConfig) -> None:
        self.worker = worker
        self.place = place
        self.cursor = Cursor()
        self.sound = False
        """The index holds exactly what the events up to the cursor say."""
        self.buffer: deque[RouterEvent] | None = None
        """Events that wait for a snapshot; None when none is under way."""
        self.syncing: asyncio.Task[None] | None = None
        self.pause = config.patience
        """Before the next snapshot, when one does not fit; longer each time, until events follow each other again."""
        self.reachable = asyncio.Event()
        self.doubt: asyncio.TimerHandle | None = None
        self.patience = config.patience
        self.doubted = 0.0
        """When a computed prompt was missing."""
        self.missing = 0
        self.quiet = config.quiet
        self.last_sign = 0.0
        """When an event or a snapshot told something."""
        self.warned = False

    def end(self) -> None:
        if self.doubt:
            self.doubt.cancel()
        if self.syncing:
            self.syncing.cancel()


class Follower:
    """Follows the events of all ranks from `start` to `close`."""

    def __init__(
        self,
        runtime: DistributedRuntime,
        instances: InstanceSet,
        index: Index,
        ranks_of: Callable[[int], int],
        stats: RouterStats,
        *,
        block_size: int,
        config: FollowConfig | None = None,
    ) -> None:
        self._runtime = runtime
        self._instances = instances
        self._index = index
        self._ranks_of = ranks_of
        self._stats = stats
        self._block_size = block_size
        self._config = config or FollowConfig()
        self._ranks: dict[tuple[int, int], _Rank] = {}
        self._odd: set[int] = set()
        """Workers with more ranks than their card says."""
        self._ended: set[asyncio.Task[None]] = set()
        self._clients: dict[Place, asyncio.Task[Client]] = {}
        self._asking = asyncio.Semaphore(self._config.concurrent)
        self._decode = msgspec.msgpack.Decoder(RouterEventBatch).decode
        self._listening: Listening | None = None
        self._forget: Callable[[], None] = lambda: None
        self._watching: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()

    def start(self) -> None:
        self._listening = Listening(self._runtime.events, self._instances, KV_EVENTS, self._hear)
        self._forget = self._instances.follow(self._changed)
        self._watching = asyncio.create_task(self._watch_for_silence())

    async def close(self) -> None:
        self._forget()
        for rank in self._ranks.values():
            rank.end()
        tasks = [
            *self._ended,
            *(rank.syncing for rank in self._ranks.values() if rank.syncing),
            *self._clients.values(),
        ]
        if self._watching:
            tasks.append(self._watching)
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        for client in ended:
            if isinstance(client, Client):
                await client.close()
        self._ranks.clear()
        if self._listening:
            await self._listening.close()

    async def settled(self) -> None:
        """Wait until no snapshot is under way."""
        while any(rank.buffer is not None for rank in self._ranks.values()):
            self._settled.clear()
            await self._settled.wait()

    def expect(self, worker: WorkerRank, chain: Sequence[int]) -> None:
        """The worker has computed a prompt with these blocks: unless the index knows, something was lost."""
        rank = self._ranks.get(worker)
        if rank is None or rank.buffer is not None or rank.doubt is not None or not chain:
            return
        if self._holds(worker, chain[-1]):
            rank.missing = 0
            if _now() - rank.doubted > 2 * self._config.longest:
                rank.patience = self._config.patience
            return
        rank.doubt = asyncio.get_running_loop().call_later(rank.patience, self._check, rank, chain[0], chain[-1])

    def _check(self, rank: _Rank, first: int, last: int) -> None:
        rank.doubt = None
        if rank.buffer is not None or self._holds(rank.worker, last):
            return
        rank.doubted = _now()
        rank.patience = min(rank.patience * 4, self._config.longest)
        if self._index.blocks(rank.worker) and not self._holds(rank.worker, first):
            rank.missing += 1
            if rank.missing == self._config.wrong_hashes:
                log.warning(
                    "worker %x rank %d publishes KV blocks, but none of the prompts it computes is among them: its "
                    "block size or hashes are not those of the model card (blocks of %d); it is chosen by load only",
                    rank.worker.worker_id, rank.worker.dp_rank, self._block_size,
                )  # fmt: skip
        self._resync(rank)

    def _holds(self, worker: WorkerRank, block: int) -> bool:
        return self._index.holds(worker, block)

    def _changed(self, instance_id: int, instance: Instance | None) -> None:
        for key in [key for key in self._ranks if key[0] == instance_id]:
            rank = self._ranks.pop(key)
            if rank.syncing:
                self._ended.add(rank.syncing)
                rank.syncing.add_done_callback(self._ended.discard)
            rank.end()
            self._index.remove_worker(rank.worker)
        self._odd.discard(instance_id)
        self._settled.set()
        if instance is None:
            return
        place = (instance.namespace, instance.component)
        if place not in self._clients:
            self._clients[place] = asyncio.create_task(self._client(place))
        for number in range(self._ranks_of(instance_id)):
            rank = _Rank(WorkerRank(instance_id, number), place, self._config)
            self._ranks[rank.worker] = rank
            self._resync(rank)

    async def _client(self, place: Place) -> Client:
        runtime = self._runtime
        client = Client(EndpointId(*place, SNAPSHOT_ENDPOINT), runtime.discovery, runtime.plane)
        try:
            await client.start()
        except BaseException:
            await client.close()
            raise
        client.set.follow(self._source_changed)
        return client

    def _source_changed(self, instance_id: int, instance: Instance | None) -> None:
        if instance is not None:
            for key, rank in self._ranks.items():
                if key[0] == instance_id:
                    rank.reachable.set()

    def _hear(self, data: bytes) -> None:
        try:
            batch = self._decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if not self._stats.malformed:
                log.warning("ignoring KV events that are none: %s; further ones are only counted", error)
            self._stats.malformed += 1
            return
        now = _now()
        for event in batch.events:
            rank = self._ranks.get((event.worker_id, event.dp_rank))
            if rank is None:
                self._unheard(event.worker_id, event.dp_rank)
                continue
            rank.last_sign = now
            rank.quiet = self._config.quiet
            if event.event_id == 0 and rank.cursor.last is not None:
                rank.sound = False  # it counts anew: its publisher began again
            if rank.buffer is None:
                self._take(rank, event)
            else:
                rank.buffer.append(event)

    def _unheard(self, worker_id: int, dp_rank: int) -> None:
        """A worker is not ours, or not known yet (then its snapshot will tell), or has more ranks than we know of."""
        if (worker_id, 0) in self._ranks and worker_id not in self._odd:
            self._odd.add(worker_id)
            log.warning(
                "worker %x publishes KV events of rank %d, but its data_parallel_size is %d: they are ignored",
                worker_id, dp_rank, self._ranks_of(worker_id),
            )  # fmt: skip

    def _take(self, rank: _Rank, event: RouterEvent) -> None:
        match rank.cursor.see(event.event_id):
            case Order.Next:
                rank.pause = self._config.patience
                self._apply(rank, event)
            case Order.Gap:
                log.debug("worker %x rank %d: event %d after %s", *rank.worker, event.event_id, rank.cursor.last)
                self._resync(rank, event)
            case Order.Stale if event.event_id == 0:
                self._resync(rank, event)

    def _apply(self, rank: _Rank, event: RouterEvent) -> None:
        self._stats.events += 1
        result = self._index.apply(event)
        if isinstance(result, Rejected):
            log.debug("worker %x rank %d: event %d: %s", *rank.worker, event.event_id, result.reason)
            rank.sound = False
            self._resync(rank)

    def _resync(self, rank: _Rank, *events: RouterEvent) -> None:
        if rank.buffer is not None:
            rank.buffer.extend(events)
            return
        rank.buffer = deque(events, maxlen=self._config.buffered)
        rank.syncing = asyncio.create_task(self._sync(rank))

    async def _sync(self, rank: _Rank) -> None:
        """Ask until a snapshot and the events after it fit together."""
        delay = self._config.retry
        while True:
            rank.reachable.clear()
            try:
                snapshot = await self._fetch(rank)
                self._adopt(rank, snapshot)
            except Exception as error:
                if not isinstance(error, DynamoException | TimeoutError):
                    log.exception("worker %x rank %d: its snapshot was of no use", *rank.worker)
                if self._begin_without(rank):
                    break
                self._without(rank, error, again=delay > self._config.retry)
                try:
                    async with asyncio.timeout(delay):
                        await rank.reachable.wait()
                except TimeoutError:
                    delay = min(delay * 2, self._config.longest)
                continue
            if rank.warned:
                rank.warned = False
                log.info("worker %x rank %d: what it caches is known now", *rank.worker)
            if self._drain(rank):
                break
            await asyncio.sleep(rank.pause)
            rank.pause = min(rank.pause * 2, self._config.longest)
        rank.buffer = None
        rank.syncing = None
        self._settled.set()

    async def _fetch(self, rank: _Rank) -> KvSnapshot:
        assert self._listening
        await self._listening.ready(rank.place)  # what comes after the snapshot must not be missed
        client = await asyncio.shield(self._clients[rank.place])
        async with self._asking, asyncio.timeout(self._config.timeout):
            self._stats.snapshots += 1
            channel = client.set.channel(rank.worker.worker_id)
            worker_id, dp_rank = rank.worker
            asked = SnapshotRequest(worker_id=worker_id, dp_rank=dp_rank, parts=True)
            parts = await ask(channel, asked, KvSnapshot)
        # Whatever it says: a worker must not be able to overwrite what another one holds.
        tiers = [tier for part in parts for tier in part.tiers]
        return KvSnapshot(worker_id=worker_id, dp_rank=dp_rank, last_event_id=parts[0].last_event_id, tiers=tiers)

    def _adopt(self, rank: _Rank, snapshot: KvSnapshot) -> None:
        now = _now()
        if rank.sound and snapshot.last_event_id == rank.cursor.last:
            # Nothing new: silence was silence.
            rank.quiet = min(rank.quiet * 2, self._config.quiet * 20)
            rank.last_sign = now
            return
        self._index.replace(snapshot)
        rank.cursor.reset(snapshot.last_event_id)
        rank.sound = True
        rank.last_sign = now

    def _drain(self, rank: _Rank) -> bool:
        """Apply what waited; False when something between the snapshot and it is missing."""
        assert rank.buffer is not None
        while rank.buffer:
            event = rank.buffer.popleft()
            match rank.cursor.see(event.event_id):
                case Order.Gap:
                    return False
                case Order.Next:
                    self._apply(rank, event)
                    if not rank.sound:
                        return False
        return True

    def _begin_without(self, rank: _Rank) -> bool:
        """Without a snapshot a worker is known while no event is missing, or if all were heard from the first on."""
        assert rank.buffer is not None
        if rank.sound and self._drain(rank):
            return True
        self._index.clear(rank.worker)
        rank.cursor.reset(None)
        rank.sound = False
        if not rank.buffer or rank.buffer[0].event_id != 0:
            return False
        rank.sound = True
        return self._drain(rank)

    def _without(self, rank: _Rank, error: BaseException, *, again: bool) -> None:
        # The first failure may only mean that the worker is still starting.
        if again and not rank.warned:
            rank.warned = True
            log.warning(
                "worker %x rank %d gives no snapshot of its KV cache (%s); it is chosen by load only until it does",
                rank.worker.worker_id, rank.worker.dp_rank, error or type(error).__name__,
            )  # fmt: skip

    async def _watch_for_silence(self) -> None:
        while True:
            await asyncio.sleep(self._config.quiet / 2)
            now = _now()
            for rank in self._ranks.values():
                if rank.buffer is None and now - rank.last_sign >= rank.quiet:
                    self._resync(rank)


def _now() -> float:
    return asyncio.get_running_loop().time()
