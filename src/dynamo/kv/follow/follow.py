"""Drives `RankSync` for all ranks: subscribes to their events, fetches snapshots and applies both to the index."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from dynamo.kv.follow.rank_sync import Action, FollowConfig, RankSync, SyncCommand, SyncState
from dynamo.kv.follow.snapshots import Snapshots
from dynamo.kv.follow.subscriptions import FollowStats, Subscriptions, count_malformed
from dynamo.kv.index.index import Index
from dynamo.kv.messages import KV_EVENTS, ComponentName, RouterEventBatch, WorkerRank
from dynamo.protocols.errors import DynamoException, InvalidArgument
from dynamo.protocols.instance import Instance
from dynamo.protocols.worker_name import worker_name
from dynamo.runtime import DistributedRuntime
from dynamo.runtime.instances import InstanceSet

log = logging.getLogger(__name__)

_WHAT = "KV events"


class _Rank:
    """One rank's state machine with the task and timers that it needs."""

    def __init__(self, worker: WorkerRank, component: ComponentName, sync: RankSync) -> None:
        self.worker = worker
        self.component = component
        self.sync = sync
        self.fetching: asyncio.Task[None] | None = None
        self.retrying: asyncio.TimerHandle | None = None
        self.checking: asyncio.TimerHandle | None = None
        """Checks later whether a computed prompt is in the index."""
        self.warned = False

    def cancel(self) -> None:
        for pending in (self.fetching, self.retrying, self.checking):
            if pending:
                pending.cancel()


class Follower:
    """Follows the events of all ranks from `start` to `close`."""

    def __init__(
        self,
        runtime: DistributedRuntime,
        instances: InstanceSet,
        index: Index,
        ranks_of: Callable[[int], int],
        stats: FollowStats,
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
        self._warned_workers: set[int] = set()
        """Workers for which events of a rank that their card does not have were logged."""
        self._cancelled: set[asyncio.Task[None]] = set()
        self._snapshots = Snapshots(
            runtime, self._reachable, timeout=self._config.timeout, concurrent=self._config.concurrent
        )
        self._subscriptions: Subscriptions[RouterEventBatch] | None = None
        self._unfollow: Callable[[], None] = lambda: None
        self._checking_silence: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._subscriptions = Subscriptions(
            self._runtime.events, self._instances, KV_EVENTS, RouterEventBatch, self._receive, self._stats, what=_WHAT
        )
        self._unfollow = self._instances.follow(self._instance_changed)
        self._checking_silence = asyncio.create_task(self._check_silence())

    async def close(self) -> None:
        self._unfollow()
        for rank in self._ranks.values():
            rank.cancel()
        tasks = [*self._cancelled, *(rank.fetching for rank in self._ranks.values() if rank.fetching)]
        if self._checking_silence:
            self._checking_silence.cancel()
            tasks.append(self._checking_silence)
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._snapshots.close()
        self._ranks.clear()
        if self._subscriptions:
            await self._subscriptions.close()

    @property
    def live(self) -> bool:
        """Whether the index follows every rank."""
        return all(rank.sync.state is SyncState.Live for rank in self._ranks.values())

    def silent_workers(self) -> set[int]:
        """Workers with a rank whose cache is unknown: it gives no snapshot, or its hashes are not ours."""
        return {
            rank.worker.worker_id
            for rank in self._ranks.values()
            if rank.warned or rank.sync.unknown_prompts >= self._config.wrong_hashes
        }

    def expect(self, worker: WorkerRank, hashes: Sequence[int]) -> None:
        """The worker has computed a prompt with these hashes: unless they are in the index soon, an event was lost."""
        rank = self._ranks.get(worker)
        if rank is None or rank.checking or rank.sync.state is not SyncState.Live or not hashes:
            return
        if self._index.holds(worker, hashes[-1]):
            rank.sync.prompt_found(_now())
            return
        loop = asyncio.get_running_loop()
        rank.checking = loop.call_later(rank.sync.patience, self._check_prompt, rank, hashes[0], hashes[-1])

    def _check_prompt(self, rank: _Rank, first: int, last: int) -> None:
        rank.checking = None
        worker = rank.worker
        if rank.sync.state is not SyncState.Live or self._index.holds(worker, last):
            return
        unknown = bool(self._index.blocks(worker)) and not self._index.holds(worker, first)
        actions = rank.sync.prompt_missing(_now(), unknown=unknown)
        if unknown and rank.sync.unknown_prompts == self._config.wrong_hashes:
            log.warning(
                "worker %s rank %d publishes KV blocks, but none of the prompts it computes is among them: its "
                "block size or hashes are not those of the model card (blocks of %d); it is chosen by load only",
                *worker.named, self._block_size,
            )  # fmt: skip
        self._perform(rank, actions)

    def _instance_changed(self, instance_id: int, instance: Instance | None) -> None:
        for key in [key for key in self._ranks if key[0] == instance_id]:
            rank = self._ranks.pop(key)
            rank.cancel()
            if rank.fetching:
                self._cancelled.add(rank.fetching)
                rank.fetching.add_done_callback(self._cancelled.discard)
            self._index.remove_worker(rank.worker)
        self._warned_workers.discard(instance_id)
        if instance is None:
            return
        component = (instance.namespace, instance.component)
        self._snapshots.connect(component)
        for number in range(self._ranks_of(instance_id)):
            rank = _Rank(WorkerRank(instance_id, number), component, RankSync(self._config, _now()))
            self._ranks[rank.worker] = rank
            self._perform(rank, rank.sync.resync())

    def _reachable(self, instance_id: int) -> None:
        for rank in [rank for key, rank in self._ranks.items() if key[0] == instance_id]:
            self._perform(rank, rank.sync.reachable())

    def _receive(self, batch: RouterEventBatch) -> None:
        now = _now()
        for event in batch.events:
            rank = self._ranks.get((event.worker_id, event.dp_rank))
            if rank is None:
                self._warn_of_unknown_rank(event.worker_id, event.dp_rank)
            else:
                self._perform(rank, rank.sync.event(event, now))

    def _warn_of_unknown_rank(self, worker_id: int, dp_rank: int) -> None:
        """Warn if the worker is one of ours and has more ranks than its card says. A new worker sends a snapshot."""
        if (worker_id, 0) in self._ranks and worker_id not in self._warned_workers:
            self._warned_workers.add(worker_id)
            log.warning(
                "worker %s publishes KV events of rank %d, but its data_parallel_size is %d: they are ignored",
                worker_name(worker_id), dp_rank, self._ranks_of(worker_id),
            )  # fmt: skip

    def _perform(self, rank: _Rank, actions: Sequence[Action]) -> None:
        for action in actions:
            if action is SyncCommand.Fetch:
                if rank.retrying:
                    rank.retrying.cancel()
                    rank.retrying = None
                rank.fetching = asyncio.create_task(self._fetch(rank))
            elif action is SyncCommand.Clear:
                self._index.clear(rank.worker)
            else:
                try:
                    self._stats.count_applied(action.data, self._index.apply(action))
                except InvalidArgument as error:
                    self._stats.count_rejected(action.data)
                    count_malformed(self._stats, _WHAT, error)
                    self._perform(rank, rank.sync.rejected())
                    return

    async def _fetch(self, rank: _Rank) -> None:
        try:
            assert self._subscriptions
            await self._subscriptions.ready(rank.component)  # otherwise events after the snapshot would be missed
            self._stats.snapshots += 1
            snapshot = await self._snapshots.fetch(rank.worker, rank.component)
            if not rank.sync.covers(snapshot.last_event_id):
                self._index.replace(snapshot)
        except Exception as error:
            if not isinstance(error, DynamoException | TimeoutError):
                log.exception("worker %s rank %d: fetching its snapshot failed", *rank.worker.named)
            actions = rank.sync.failed()
            self._warn_of_failure(rank, error)
        else:
            actions = rank.sync.snapshot(snapshot.last_event_id, _now())
            if rank.warned:
                rank.warned = False
                log.info("worker %s rank %d: what it caches is known now", *rank.worker.named)
        rank.fetching = None
        self._perform(rank, actions)
        if rank.sync.state is SyncState.BackingOff:
            rank.retrying = asyncio.get_running_loop().call_later(rank.sync.backoff, self._retry, rank)

    def _retry(self, rank: _Rank) -> None:
        rank.retrying = None
        self._perform(rank, rank.sync.retry())

    def _warn_of_failure(self, rank: _Rank, error: Exception) -> None:
        # The first failure may only mean that the worker is still starting.
        if rank.sync.failures > 1 and not rank.warned:
            rank.warned = True
            log.warning(
                "worker %s rank %d gives no snapshot of its KV cache (%s); it is chosen by load only until it does "
                "(for an engine without KV events: --use-kv-events=false)",
                *rank.worker.named, error or type(error).__name__,
            )  # fmt: skip

    async def _check_silence(self) -> None:
        while True:
            await asyncio.sleep(self._config.quiet / 2)
            now = _now()
            for rank in self._ranks.values():
                self._perform(rank, rank.sync.check_silence(now))


def _now() -> float:
    return asyncio.get_running_loop().time()
