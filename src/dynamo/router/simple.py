"""The router of the simple policies: it counts its own requests and follows what workers report.

Where several tenants share the workers, requests beyond what these can run wait here, and tenants take turns.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from pkgutil import resolve_name
from typing import Any

from dynamo.kv.index.prefixes import PrefixScan
from dynamo.kv.messages import WorkerRank
from dynamo.protocols.card import DRAFT_TOKENS, ModelRuntimeConfig
from dynamo.protocols.engine import PreprocessedRequest, Session, Tenant
from dynamo.protocols.errors import ResourceExhausted, RouterQueueLimitExceeded
from dynamo.router.choice.queue import Queue, RequestToPlace
from dynamo.router.choice.service import PROMPT_BATCHES, TenantsUnderWay, most_requests
from dynamo.router.config import RoutingConfig
from dynamo.router.decision import Decision
from dynamo.router.load.reported import ReportedLoads
from dynamo.router.placement import DECISIONS_KEPT, Placement, RankStatus, WorkerLoad, check_pinned
from dynamo.router.policy import Policy
from dynamo.router.sessions.sync import AffinitySync
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
        self.known_blocks = 0
        self._mode = config.mode
        self._affinity = config.affinity() if config.mode != "direct" else None
        self._affinity_sync: AffinitySync | None = None
        self._policy: Policy = resolve_name(POLICIES[config.mode])()
        self._events = events
        self._runtime_of = runtime_of
        self._queue_limit = config.queue_limit
        self.queue: Queue[Placement] = Queue(
            "fcfs", self._place_fairly, lambda request: [WorkerRank(id) for id in self._candidates(request)]
        )
        self._in_flight: dict[int, int] = {}
        self._prompts: dict[int, int] = {}
        """Prompt tokens at each instance that are not computed."""
        self._sent: dict[Placement, int] = {}
        """The prompt tokens of each request in `_prompts`."""
        self._unfollow: Callable[[], None] = lambda: None
        self._thresholds = config.thresholds()
        self._reported: ReportedLoads | None = None
        self._started = False

    @property
    def waiting(self) -> int:
        return len(self.queue)

    @property
    def waiting_tokens(self) -> int:
        return sum(request.prompt_tokens for request in self.queue)

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
        if not self._started:
            if self._affinity:
                self._affinity_sync = AffinitySync(self._affinity, self._events, self.instances, self.stats)
            self._unfollow = self.instances.follow(lambda instance_id, instance: self.queue.dispatch())
        self._started = True
        if self._thresholds and self._reported is None:
            self._reported = ReportedLoads(self._events, self.instances, self.stats)

    async def close(self) -> None:
        self._started = False
        self._unfollow()
        self.queue.reject_all(self.instances.none_reachable)
        if self._affinity_sync:
            await self._affinity_sync.close()
            self._affinity_sync = None
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
        session: Session | None = None,
    ) -> Placement:
        request_to_place = RequestToPlace(request=request, request_id=request_id, pinned=pinned, avoid=avoid)
        if session and session.named:
            request_to_place.session = session
        if isinstance(request, PreprocessedRequest):
            request_to_place.prompt_tokens = len(request.token_ids)
        if tenant is None or not (tenant.shares or tenant.background or self.queue.waiting.count):
            return self._place(request_to_place, self._candidates(request_to_place), shared=tenant is not None)
        request_to_place.tenant = tenant
        if not self.queue.takes_turns(tenant):
            placement = self._place_fairly(request_to_place)
            if placement:
                self.queue.passed(request_to_place, 0)
                return placement
        if len(self.queue) >= self._queue_limit * max(1, len(self.instances)):
            self.stats.rejected += 1
            self.stats.queue_full += 1
            error = RouterQueueLimitExceeded(f"{len(self.queue)} requests wait already. Please retry shortly.")
            if not self.queue.make_room(tenant, error):
                raise error
        self.stats.queued += 1
        return await self.queue.wait(request_to_place, request_to_place.prompt_tokens)

    def _candidates(self, request: RequestToPlace) -> Sequence[int]:
        if request.pinned is not None:
            check_pinned(self.instances, request.pinned)
            return self._below_thresholds([request.pinned])
        routable = self.instances.routable(request.avoid)
        if not routable:
            raise self.instances.none_reachable()
        if request.session and self._affinity and self._affinity.hard:
            bound = self._affinity.bound(request.session)
            request.held = bound is not None and bound.worker.worker_id in routable
            if bound and request.held:
                routable = (bound.worker.worker_id,)
        return self._below_thresholds(routable)

    def _place_fairly(self, request: RequestToPlace, awaited: Collection[WorkerRank] = ()) -> Placement | None:
        """None when the request must wait: all its candidates are full, or `awaited` by earlier requests."""
        taken = {worker.worker_id for worker in awaited}
        under_way = self.queue.ledger.under_way(request.tenant)
        free = [
            id for id in self._candidates(request) if id not in taken and self._has_room(id, request.tenant, under_way)
        ]
        return self._place(request, free) if free else None

    def _has_room(self, instance_id: int, tenant: Tenant, under_way: TenantsUnderWay) -> bool:
        if not (tenant.shares or tenant.background):
            return True
        card = self._runtime_of(instance_id)
        ranks = max(1, card.data_parallel_size)
        prompts = self._prompts.get(instance_id, 0)
        # Whoever has nothing under way is sent ahead of the prompts that wait here.
        if prompts > PROMPT_BATCHES * ranks * (card.max_num_batched_tokens or 8192) and (
            under_way.own or tenant.background
        ):
            return False
        most = card.max_num_seqs
        if most is None:
            return True
        return self._in_flight.get(instance_id, 0) < most_requests(ranks * most, tenant, under_way)

    def _place(self, request: RequestToPlace, candidates: Sequence[int], *, shared: bool = True) -> Placement:
        """`shared`: other tenants may look at what waits at its worker."""
        chosen, bound = request.pinned, None
        if chosen is None and request.session and self._affinity:
            bound = self._affinity.bound(request.session)
            if bound and bound.worker.worker_id in candidates and not self._is_full(bound.worker.worker_id):
                chosen = bound.worker.worker_id
        if chosen is None:
            chosen = self._policy.choose(candidates, self._in_flight)
        # Counted already now: other requests are placed while this one connects.
        before = self._in_flight.get(chosen, 0)
        self._in_flight[chosen] = before + 1
        decision = Decision(
            request_id=request.request_id,
            time=time.time(),
            mode=self._mode,
            worker_id=chosen,
            dp_rank=None,
            pinned=request.pinned is not None,
            considered=len(candidates),
            in_flight=before,
            session=request.session.id if request.session else "",
            session_worker=bound.worker if bound else None,
        )
        placement = Placement(self, chosen, self.instances.channel(chosen), decision)
        if self._affinity and request.session:
            placement.turn = self._affinity.begin(request.session, WorkerRank(chosen), request.prompt_tokens)
        if shared:
            self._sent[placement] = request.prompt_tokens
            self._prompts[chosen] = self._prompts.get(chosen, 0) + request.prompt_tokens
            self.queue.ledger.began(placement, request)
        return placement

    def _is_full(self, instance_id: int) -> bool:
        """Whether it runs as many requests as it can, as far as its card says; such a worker loses a session."""
        card = self._runtime_of(instance_id)
        most = card.max_num_seqs
        return most is not None and self._in_flight.get(instance_id, 0) >= most * max(1, card.data_parallel_size)

    def connected(self, placement: Placement) -> None:
        decision = placement.decision
        assert decision
        self.decisions.append(decision)
        self.stats.requests += 1
        if log.isEnabledFor(logging.DEBUG):
            log.debug("request %s: %s", decision.request_id, decision)

    def prompt_computed(self, placement: Placement) -> None:
        self._computed(placement)
        self.queue.dispatch()

    def released(self, placement: Placement) -> None:
        left = self._in_flight[placement.instance_id] - 1
        if left:
            self._in_flight[placement.instance_id] = left
        else:
            del self._in_flight[placement.instance_id]
        self._computed(placement)
        self.queue.ledger.ended(placement)
        self.queue.dispatch()

    def _computed(self, placement: Placement) -> None:
        """Its prompt does not wait any more."""
        tokens = self._sent.pop(placement, 0)
        if not tokens:
            return
        left = self._prompts.get(placement.instance_id, 0) - tokens
        if left:
            self._prompts[placement.instance_id] = left
        else:
            self._prompts.pop(placement.instance_id, None)

    def session_paused(self, session: Session, kind: str) -> None:
        """Nothing is known of caches here."""

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
        if self._started and self._reported is None and any(map(self._guesses, self.instances.ids())):
            self._reported = ReportedLoads(self._events, self.instances, self.stats)
        reported = {load.worker: load for load in self.loads()}
        first = (WorkerRank(id) for id in self.instances.ids())
        return [
            RankStatus(
                worker,
                self._in_flight.get(worker.worker_id, 0) if worker.dp_rank == 0 else 0,
                load.decode_blocks if (load := reported.get(worker)) else None,
                load.prefill_tokens if load else None,
                acceptance=self._reported.get(worker).acceptance if self._reported else None,
            )
            for worker in dict.fromkeys((*first, *reported))
        ]

    def prefixes(self, most: int) -> PrefixScan:
        yield from ()
        return []

    def _guesses(self, instance_id: int) -> bool:
        """How many of the tokens that a worker guesses are right is in its load reports alone."""
        return bool(self._runtime_of(instance_id).get_engine_specific(DRAFT_TOKENS))

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
