"""The router of the simple policies: it counts its own requests and knows what workers report."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

from dynamo.protocols.card import ModelRuntimeConfig
from dynamo.protocols.errors import DynamoException, ResourceExhausted
from dynamo.protocols.kv import WorkerRank
from dynamo.router.config import RouterConfig
from dynamo.router.decision import Decision
from dynamo.router.policy import POLICIES
from dynamo.router.reported import ReportedLoads
from dynamo.router.router import REMEMBERED, Placement, WorkerLoad, pinned_channel
from dynamo.router.stats import RouterStats
from dynamo.router.thresholds import Thresholds
from dynamo.runtime.events import EventPlane
from dynamo.runtime.instances import InstanceSet
from dynamo.runtime.plane.base import Channel

log = logging.getLogger(__name__)


class SimplePlacement(Placement):
    __slots__ = ("_in_flight",)

    def __init__(self, instance_id: int, channel: Channel, decision: Decision, in_flight: dict[int, int]) -> None:
        super().__init__(instance_id, channel, decision)
        self._in_flight = in_flight
        in_flight[instance_id] = in_flight.get(instance_id, 0) + 1

    def _freed(self) -> None:
        left = self._in_flight[self.instance_id] - 1
        if left:
            self._in_flight[self.instance_id] = left
        else:
            del self._in_flight[self.instance_id]


class SimpleRouter:
    def __init__(
        self,
        config: RouterConfig,
        instances: InstanceSet,
        events: EventPlane,
        runtime_of: Callable[[int], ModelRuntimeConfig],
    ) -> None:
        self.instances = instances
        self.decisions: deque[Decision] = deque(maxlen=REMEMBERED)
        self.stats = RouterStats()
        self.waiting = self.known_blocks = 0
        self._mode = config.mode
        self._policy = POLICIES[config.mode]()
        self._events = events
        self.waiting_tokens = 0
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
        """Reports are only listened to while somebody has set a threshold."""
        self._started = True
        if self._thresholds and self._reported is None:
            self._reported = ReportedLoads(self._events, self.instances, self.stats)

    async def close(self) -> None:
        self._started = False
        if self._reported:
            await self._reported.close()
            self._reported = None

    async def open(
        self, request: Any, *, request_id: str = "", pinned: int | None = None, avoid: Collection[int] = ()
    ) -> SimplePlacement:
        if pinned is not None:
            pinned_channel(self.instances, pinned)
            placement = self._counted(request_id, pinned, self._free_of([pinned]), pinned=True)
            await placement.connect()
            return self._recorded(placement)
        failed = set(avoid)
        last: DynamoException | None = None
        while routable := self.instances.routable(failed):
            free = self._free_of(routable)
            placement = self._counted(request_id, self._policy.choose(free, self._in_flight), free, pinned=False)
            try:
                await placement.connect()
            except DynamoException as error:
                self.instances.unreachable(placement.instance_id, error)
                failed.add(placement.instance_id)
                last = error
            else:
                return self._recorded(placement)
        raise self.instances.nobody(last) from last

    def loads(self) -> list[WorkerLoad]:
        """What workers report, while anybody listens."""
        if self._reported is None:
            return []
        return [
            WorkerLoad(worker, load.used_blocks, load.active_prefill_tokens or 0)
            for worker, load in self._reported.all()
        ]

    def _counted(
        self, request_id: str, instance_id: int, candidates: Sequence[int], *, pinned: bool
    ) -> SimplePlacement:
        """From the choice on: many others may choose while the worker is being reached."""
        decision = Decision(
            request_id=request_id,
            time=time.time(),
            mode=self._mode,
            worker_id=instance_id,
            dp_rank=None,
            pinned=pinned,
            considered=len(candidates),
            in_flight=self._in_flight.get(instance_id, 0),
        )
        return SimplePlacement(instance_id, self.instances.channel(instance_id), decision, self._in_flight)

    def _recorded(self, placement: SimplePlacement) -> SimplePlacement:
        decision = placement.decision
        self.decisions.append(decision)
        self.stats.requests += 1
        if log.isEnabledFor(logging.DEBUG):
            log.debug("request %s: %s", decision.request_id, decision)
        return placement

    def _free_of(self, candidates: Sequence[int]) -> Sequence[int]:
        """Those that are not busy."""
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
        for rank in range(max(1, card.data_parallel_size)):
            if not self._thresholds.busy(card, self._reported.get(WorkerRank(instance_id, rank))):
                return False
        return True
