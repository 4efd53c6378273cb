"""The router of the simple policies: it counts its own requests and follows what workers report."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from pkgutil import resolve_name
from typing import Any

from dynamo.kv.index.prefixes import PrefixScan
from dynamo.kv.messages import WorkerRank
from dynamo.protocols.card import ModelRuntimeConfig
from dynamo.protocols.engine import Tenant
from dynamo.protocols.errors import ResourceExhausted
from dynamo.router.config import RoutingConfig
from dynamo.router.decision import Decision
from dynamo.router.load.reported import ReportedLoads
from dynamo.router.placement import DECISIONS_KEPT, Placement, RankStatus, WorkerLoad, check_pinned
from dynamo.router.policy import Policy
from dynamo.router.stats import RouterStats
from dynamo.router.thresholds import Thresholds
from dynamo.runtime.events import EventPlane
from dynamo.runtime.instances import InstanceSet
from dynamo.settings.router import POLICIES

log = logging.getLogger(__name__)


class SimpleRouter:
    def __init__(
        self,
        config: RoutingConfig,
        instances: InstanceSet,
        events: EventPlane,
        runtime_of: Callable[[int], ModelRuntimeConfig],
    ) -> None:
        self.instances = instances
        self.watch = config.watch()
        self.backoff = config.backoff
        self.decisions: deque[Decision] = deque(maxlen=DECISIONS_KEPT)
        self.stats = RouterStats()
        self.waiting = self.waiting_tokens = self.known_blocks = 0
        self._mode = config.mode
        self._policy: Policy = resolve_name(POLICIES[config.mode])()
        self._events = events
        self._runtime_of = runtime_of
        self._in_flight: dict[int, int] = {}
        self._thresholds = config.thresholds()
        self._reported: ReportedLoads | None = None
        self._started = False

    @property
    def active(self) -> int:
        return sum(self._in_flight.values())

    @property
    def thresholds(self) -> Thresholds:
        return self._thresholds

    @thresholds.setter
    def thresholds(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        if self._started:
            self.start()

    def start(self) -> None:
        """Follow load reports once a threshold is set: they matter for nothing else."""
        self._started = True
        if self._thresholds and self._reported is None:
            self._reported = ReportedLoads(self._events, self.instances, self.stats)

    async def close(self) -> None:
        self._started = False
        if self._reported:
            await self._reported.close()
            self._reported = None

    async def place(
        self,
        request: Any,
        *,
        request_id: str = "",
        group: object = None,
        pinned: int | None = None,
        avoid: Collection[int] = (),
        tenant: Tenant | None = None,
    ) -> Placement:
        if pinned is not None:
            check_pinned(self.instances, pinned)
            candidates = self._below_thresholds([pinned])
            chosen = pinned
        else:
            routable = self.instances.routable(avoid)
            if not routable:
                raise self.instances.none_reachable()
            candidates = self._below_thresholds(routable)
            chosen = self._policy.choose(candidates, self._in_flight)
        # Counted already now: other requests are placed while this one connects.
        before = self._in_flight.get(chosen, 0)
        self._in_flight[chosen] = before + 1
        decision = Decision(
            request_id=request_id,
            time=time.time(),
            mode=self._mode,
            worker_id=chosen,
            dp_rank=None,
            pinned=pinned is not None,
            considered=len(candidates),
            in_flight=before,
        )
        return Placement(self, chosen, self.instances.channel(chosen), decision)

    def connected(self, placement: Placement) -> None:
        decision = placement.decision
        assert decision
        self.decisions.append(decision)
        self.stats.requests += 1
        if log.isEnabledFor(logging.DEBUG):
            log.debug("request %s: %s", decision.request_id, decision)

    def prompt_computed(self, placement: Placement) -> None: ...

    def released(self, placement: Placement) -> None:
        left = self._in_flight[placement.instance_id] - 1
        if left:
            self._in_flight[placement.instance_id] = left
        else:
            del self._in_flight[placement.instance_id]

    def loads(self) -> list[WorkerLoad]:
        """What workers report, while their reports are followed."""
        if self._reported is None:
            return []
        return [
            WorkerLoad(worker, load.used_blocks, load.active_prefill_tokens or 0)
            for worker, load in self._reported.all()
        ]

    def status(self) -> list[RankStatus]:
        """Where load reports are followed, those of all ranks; the requests of a worker are counted at its first."""
        reported = {load.worker: load for load in self.loads()}
        first = (WorkerRank(id) for id in self.instances.ids())
        return [
            RankStatus(
                worker,
                self._in_flight.get(worker.worker_id, 0) if worker.dp_rank == 0 else 0,
                load.decode_blocks if (load := reported.get(worker)) else None,
                load.prefill_tokens if load else None,
            )
            for worker in dict.fromkeys((*first, *reported))
        ]

    def prefixes(self, most: int) -> PrefixScan:
        yield from ()
        return []

    def _below_thresholds(self, candidates: Sequence[int]) -> Sequence[int]:
        """The candidates that are not busy; raises when all are."""
        if not self._thresholds or self._reported is None:
            return candidates
        free = [id for id in candidates if not self._busy(id)]
        if not free:
            self.stats.rejected += 1
            raise ResourceExhausted(f"All workers of '{self.instances.name}' are busy. Please retry shortly.")
        return free

    def _busy(self, instance_id: int) -> bool:
        """A worker is busy when all its ranks are."""
        assert self._reported
        card = self._runtime_of(instance_id)
        ranks = [WorkerRank(instance_id, rank) for rank in range(max(1, card.data_parallel_size))]
        return all(self._thresholds.busy(card, self._reported.get(rank)) for rank in ranks)
