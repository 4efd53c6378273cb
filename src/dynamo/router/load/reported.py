"""What workers report of their load, which includes requests of other routers, and what a router knows of each rank."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from dynamo.kv.follow.subscriptions import Subscriptions
from dynamo.kv.index.index import Index
from dynamo.kv.messages import KV_METRICS, LOAD_REPORT_SECONDS, ActiveLoad, Tier, WorkerRank
from dynamo.protocols.card import MAX_RANKS
from dynamo.protocols.instance import Instance
from dynamo.router.load_book import Loads
from dynamo.router.placement import RankStatus, TierStatus
from dynamo.router.stats import RouterStats
from dynamo.runtime.events import EventPlane
from dynamo.runtime.instances import InstanceSet

NO_REPORT = ActiveLoad(worker_id=0)
MAX_MISSED = 4
"""The load of a worker that has missed this many reports is dropped."""
NOTIFY_DELAY_SECONDS = 0.02
"""Hundreds of workers may report at once: waiting requests are reconsidered once for all of them."""
SLOWER = (Tier.Host, Tier.Disk, Tier.External)


class ReportedLoads:
    """The latest load report of each rank. `changed` is called shortly after reports arrive or are dropped."""

    def __init__(
        self, events: EventPlane, instances: InstanceSet, stats: RouterStats, changed: Callable[[], None] = lambda: None
    ) -> None:
        self._instances = instances
        self._changed = changed
        self._notifying: asyncio.TimerHandle | None = None
        self._loads: dict[tuple[int, int], ActiveLoad] = {}
        self._received_at: dict[tuple[int, int], float] = {}
        self._tier_weights: tuple[Sequence[WorkerRank | None], tuple[list[float], list[float]]] | None = None
        """For these workers; None when a rank has reported others since."""
        self._unfollow = instances.follow(self._member_changed)
        self._subscriptions = Subscriptions(
            events, instances, KV_METRICS, ActiveLoad, self._receive, stats, what="load reports"
        )
        self._sweeping = asyncio.create_task(self._sweep())

    def get(self, worker: WorkerRank) -> ActiveLoad:
        return self._loads.get(worker, NO_REPORT)

    def all(self) -> list[tuple[WorkerRank, ActiveLoad]]:
        return [(WorkerRank(*key), load) for key, load in self._loads.items()]

    def tier_weights(
        self, workers: Sequence[WorkerRank | None], host: float, disk: float
    ) -> tuple[list[float], list[float]]:
        """What each of the workers has measured for its tiers; `host` and `disk` where it has not."""
        known = self._tier_weights
        if known is None or known[0] is not workers:
            loads = [NO_REPORT if worker is None else self.get(worker) for worker in workers]
            hosts = [host if load.host_weight is None else load.host_weight for load in loads]
            disks = [disk if load.disk_weight is None else load.disk_weight for load in loads]
            known = self._tier_weights = (workers, (hosts, disks))
        return known[1]

    async def close(self) -> None:
        self._unfollow()
        if self._notifying:
            self._notifying.cancel()
        self._sweeping.cancel()
        await asyncio.gather(self._sweeping, return_exceptions=True)
        await self._subscriptions.close()

    def _receive(self, load: ActiveLoad) -> None:
        if load.worker_id in self._instances and load.dp_rank < MAX_RANKS:
            loop = asyncio.get_running_loop()
            before = self.get(WorkerRank(load.worker_id, load.dp_rank))
            if (before.host_weight, before.disk_weight) != (load.host_weight, load.disk_weight):
                self._tier_weights = None
            self._loads[load.worker_id, load.dp_rank] = load
            self._received_at[load.worker_id, load.dp_rank] = loop.time()
            if self._notifying is None:
                self._notifying = loop.call_later(NOTIFY_DELAY_SECONDS, self._notify)

    def _notify(self) -> None:
        self._notifying = None
        self._changed()

    def _member_changed(self, instance_id: int, instance: Instance | None) -> None:
        if instance is None:
            self._drop([key for key in self._loads if key[0] == instance_id])

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(LOAD_REPORT_SECONDS)
            since = asyncio.get_running_loop().time() - MAX_MISSED * LOAD_REPORT_SECONDS
            if silent := [key for key, at in self._received_at.items() if at < since]:
                self._drop(silent)
                self._changed()

    def _drop(self, keys: list[tuple[int, int]]) -> None:
        self._tier_weights = None
        for key in keys:
            del self._loads[key], self._received_at[key]


def kv_status(
    workers: Sequence[WorkerRank], loads: Loads, index: Index | None, reported: ReportedLoads | None
) -> list[RankStatus]:
    """`index` None: what is cached is not known."""
    columns = zip(workers, loads.requests, loads.active_blocks, loads.prefill_tokens, strict=True)
    return [
        RankStatus(
            worker,
            int(requests),
            int(blocks),
            int(tokens),
            None if index is None else index.blocks(worker),
            _tiers(worker, index, reported) if index is not None and (index.has_tiers or reported) else (),
            reported.get(worker).acceptance if reported else None,
        )
        for worker, requests, blocks, tokens in columns
    ]


def _tiers(worker: WorkerRank, index: Index, reported: ReportedLoads | None) -> list[TierStatus]:
    reports = {report.tier: report for report in reported.get(worker).tiers} if reported else {}
    held = [(tier, index.blocks(worker, tier)) for tier in SLOWER]
    return [TierStatus(tier, blocks, reports.get(tier)) for tier, blocks in held if blocks or tier in reports]
