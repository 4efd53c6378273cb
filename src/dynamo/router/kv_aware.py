"""The KV-aware router of one model: hashes the prompt, asks the index and the load book, chooses and books."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from time import perf_counter
from typing import Any

from dynamo.kv.follow.follow import Follower
from dynamo.kv.follow.rank_sync import FollowConfig
from dynamo.kv.hashing import PromptHashes
from dynamo.kv.index.approximate import ApproximateIndex
from dynamo.kv.index.index import Index
from dynamo.kv.index.overlaps import Overlaps
from dynamo.kv.index.prefixes import PrefixScan
from dynamo.kv.messages import WorkerRank
from dynamo.kv.prompt_cost import estimate_tokens
from dynamo.protocols.card import DRAFT_TOKENS, ModelRuntimeConfig
from dynamo.protocols.engine import PreprocessedRequest, Routing, Session, Tenant
from dynamo.protocols.errors import InvalidArgument, InvalidRequest, ResourceExhausted, RouterQueueLimitExceeded
from dynamo.protocols.instance import Instance
from dynamo.router.choice.choose import Choice, choose
from dynamo.router.choice.cost import CostConfig, Kept
from dynamo.router.choice.fleet import Capacity, Fleet, RankTable
from dynamo.router.choice.loaded_rule import LoadedRule, load
from dynamo.router.choice.queue import Queue, RequestToPlace
from dynamo.router.choice.service import PROMPT_BATCHES, most_requests
from dynamo.router.config import RoutingConfig
from dynamo.router.decision import Decision
from dynamo.router.load.active_requests import ActiveRequests, KvPlacement
from dynamo.router.load.replicas import Replicas
from dynamo.router.load.reported import NO_REPORT, ReportedLoads, kv_status
from dynamo.router.load_book import LoadBook
from dynamo.router.placement import DECISIONS_KEPT, RankStatus, WorkerLoad, check_pinned
from dynamo.router.prefix_copies import PrefixCopies
from dynamo.router.sessions.pause_feed import PauseFeed
from dynamo.router.sessions.sync import AffinitySync
from dynamo.router.stats import ChoiceTimer, Overhead, RouterStats
from dynamo.router.thresholds import Thresholds
from dynamo.runtime import DistributedRuntime
from dynamo.runtime.instances import InstanceSet

log = logging.getLogger(__name__)

SWEEP_SECONDS = 30.0
RELOAD_SECONDS = 1.0
_NO_ROUTING = Routing()
_DEFAULT_WEIGHTS = (CostConfig().host_weight, CostConfig().disk_weight)


class KvAwareRouter:
    def __init__(
        self,
        config: RoutingConfig,
        instances: InstanceSet,
        runtime: DistributedRuntime,
        block_size: int,
        runtime_of: Callable[[int], ModelRuntimeConfig],
        *,
        follow: FollowConfig | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.instances = instances
        self.watch = config.watch()
        self.backoff = config.backoff
        self.decisions: deque[Decision] = deque(maxlen=DECISIONS_KEPT)
        self.overhead = Overhead()
        self.stats = RouterStats(overhead=self.overhead)
        self.index = Index()
        self.approximate = None if config.use_kv_events else ApproximateIndex(ttl=config.ttl)
        self.book = LoadBook()
        self._config = config
        self._cost = config.cost
        self.rule: LoadedRule | None = None
        self._runtime = runtime
        self._block_size = block_size
        self._hashes = PromptHashes(block_size)
        self._runtime_of = runtime_of
        self._rng = rng or random.Random()
        self._thresholds = config.thresholds() or None
        self._reported: ReportedLoads | None = None
        self._guesses = False
        """A worker guesses tokens ahead."""
        self._affinity = config.affinity()
        self._affinity_sync: AffinitySync | None = None
        self.pauses: PauseFeed | None = None
        self._ranks = RankTable(block_size)
        self.queue: Queue[KvPlacement] = Queue(
            config.queue_policy, self._choose_and_book, lambda request: self._candidates(request).workers
        )
        self.follower = (
            Follower(
                runtime, instances, self.index, self._ranks.ranks, self.stats, block_size=block_size, config=follow
            )
            if self.approximate is None and config.overlap_weight
            else None
        )
        self.replicas = (
            Replicas(runtime.events, instances, self.book, self.approximate, self.stats, self.queue.dispatch)
            if config.replica_sync
            else None
        )
        self._active = ActiveRequests(
            self.book, self.approximate, self.replicas, self.follower, self.queue.ledger, self.queue.dispatch
        )
        self._copies = (
            PrefixCopies(self._active, instances, self._ranks, self.stats)
            if self.follower and config.copy_prefixes
            else None
        )
        self._unfollow: Callable[[], None] = lambda: None
        self._sweeping: asyncio.Task[None] | None = None
        self._reloading: asyncio.Task[None] | None = None
        if config.rule is not None:
            self.use_rule(load(config.rule))

    @property
    def thresholds(self) -> Thresholds:
        return self._thresholds or Thresholds()

    @thresholds.setter
    def thresholds(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds or None
        self._follow_reports()
        self.queue.dispatch()

    @property
    def waiting(self) -> int:
        return len(self.queue)

    @property
    def waiting_tokens(self) -> int:
        return sum(request.prompt_tokens for request in self.queue)

    @property
    def waiting_cached_tokens(self) -> int:
        return sum(request.cached_tokens for request in self.queue)

    @property
    def active(self) -> int:
        return len(self.book)

    @property
    def known_blocks(self) -> int:
        return sum(map(self.index.blocks, self.index.workers)) if self.approximate is None else len(self.approximate)

    def start(self) -> None:
        # In this order: a new instance may at once get a waiting request, which is announced to the other routers, and
        # the follower looks up an instance's ranks.
        if self.replicas:
            self.replicas.start()
        self._unfollow = self.instances.follow(self.instance_changed)
        if self.follower:
            self.follower.start()
        if self._affinity:
            self._affinity_sync = AffinitySync(self._affinity, self._runtime.events, self.instances, self.stats)
        if self._config.keep_paused:
            self.pauses = PauseFeed(self._runtime.events, self.instances)
        self._sweeping = asyncio.create_task(self._sweep())
        self._reloading = asyncio.create_task(self._reload_rule())
        self._follow_reports()

    async def close(self) -> None:
        self._unfollow()
        self.queue.reject_all(self.instances.none_reachable)
        if self._sweeping is None:
            return
        tasks = [task for task in (self._sweeping, self._reloading) if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._sweeping = self._reloading = None
        self._active.detach()
        reported, self._reported = self._reported, None
        affinity, self._affinity_sync = self._affinity_sync, None
        if self.pauses:
            self.pauses.close()
            self.pauses = None
        for part in (affinity, self._copies, self.follower, self.replicas, reported):
            if part:
                await part.close()

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
        cost: CostConfig | None = None,
        copies: bool = True,
        learn: bool = True,
    ) -> KvPlacement:
        """See `Router.place`; for the last three arguments, see `RequestToPlace`."""
        timer = self.overhead.timer()
        pending = self._request_to_place(request, request_id, pinned, avoid)
        pending.group, pending.cost, pending.copies, pending.learn = group, cost, copies and pinned is None, learn
        if tenant:
            pending.tenant = tenant
        if session and session.named:
            pending.session = session
        if timer:
            timer.hashed = perf_counter()
        if not self.queue.takes_turns(pending.tenant):
            placement = self._choose_and_book(pending, arriving=True, timer=timer)
            if placement:
                if tenant:
                    choice = placement.decision.choice if placement.decision else None
                    overlap = choice.overlap.device if choice else 0
                    self.queue.passed(pending, min(pending.prompt_tokens, overlap * self._block_size))
                if timer:
                    timer.placed()
                return placement
        elif self._thresholds:
            self._below_thresholds(self._candidates(pending), pending)
        if len(self.queue) >= self._config.queue_limit * max(1, len(self.instances)):
            self.stats.rejected += 1
            self.stats.queue_full += 1
            error = RouterQueueLimitExceeded(f"{len(self.queue)} requests wait already. Please retry shortly.")
            if not self.queue.make_room(pending.tenant, error):
                raise error
        self.stats.queued += 1
        return await self.queue.wait(pending, self._uncached(pending))

    def peek(
        self, request: PreprocessedRequest, cost: CostConfig | None = None, *, include_busy: bool = False
    ) -> Choice:
        """What would be chosen now, without a reservation; with `include_busy`, also from draining and busy workers."""
        pending = self._request_to_place(request, "", None, () if include_busy else self.instances.draining())
        fleet = self._candidates(pending)
        if self._thresholds and not include_busy:
            fleet = self._below_thresholds(fleet, pending)
        now = asyncio.get_running_loop().time()
        loads = self.book.loads(fleet.workers, pending.hashes, now)
        overlaps = self._overlaps(pending.hashes, now)
        return choose(
            pending.prompt_tokens,
            len(pending.hashes),
            fleet,
            overlaps,
            loads,
            cost or self._cost,
            self._rng,
            self.rule,
            self.stats.requests,
        )

    def session_paused(self, session: Session, kind: str, returns_in: float | None = None) -> None:
        """See `Router.session_paused`. `returns_in` is for experiments that know."""
        if self.pauses:
            self.pauses.paused(session, kind, returns_in)

    def use_rule(self, rule: LoadedRule | None) -> None:
        """Let this rule choose from the next request on; None is the built-in one."""
        self.rule = rule
        if rule:
            # A rule that is loaded again is counted on.
            rule.fallbacks = self.stats.rule_fallbacks.setdefault(rule.name, Counter())

    def loads(self) -> list[WorkerLoad]:
        """What this router has reserved and other routers have announced."""
        workers = self._ranks.workers
        loads = self.book.loads(workers, (), asyncio.get_running_loop().time())
        columns = zip(workers, loads.active_blocks, loads.prefill_tokens, strict=True)
        return [WorkerLoad(worker, int(blocks), int(tokens)) for worker, blocks, tokens in columns]

    def status(self) -> list[RankStatus]:
        if self.index.has_tiers or self._guesses:
            self._follow_reports(shown=True)
        loads = self.book.loads(self._ranks.workers, (), asyncio.get_running_loop().time())
        index = self.index if self.approximate is None else None
        return kv_status(self._ranks.workers, loads, index, self._reported)

    def prefixes(self, most: int) -> PrefixScan:
        return (self.index if self.approximate is None else self.approximate).prefixes(most)

    def _request_to_place(
        self, request: Any, request_id: str, pinned: int | None, avoid: Collection[int]
    ) -> RequestToPlace:
        now = asyncio.get_running_loop().time()
        pending = RequestToPlace(request=request, request_id=request_id, pinned=pinned, avoid=avoid, arrived=now)
        if isinstance(request, PreprocessedRequest):
            routing = request.routing or _NO_ROUTING
            pending.hashes = self._hashes.of(
                request.token_ids, lora_name=routing.lora_name, cache_salt=routing.cache_salt
            )
            pending.prompt_tokens = len(request.token_ids)
            pending.priority = routing.priority or 0
            pending.strict_priority = routing.strict_priority or 0
            pending.expected_output_tokens = routing.expected_output_tokens or 0
            pending.dp_rank = routing.dp_rank
        else:
            pending.prompt_tokens = estimate_tokens(request)
        return pending

    def _choose_and_book(
        self,
        pending: RequestToPlace,
        awaited: Collection[WorkerRank] = (),
        *,
        arriving: bool = False,
        timer: ChoiceTimer | None = None,
    ) -> KvPlacement | None:
        """None when the request must wait: all its candidates are too busy, or `awaited` by earlier requests."""
        fleet = self._candidates(pending)
        if awaited:
            fleet = self._ranks.only([worker for worker in fleet.workers if worker not in awaited])
        if self._thresholds:
            fleet = self._below_thresholds(fleet, pending, reject=arriving)
        now = asyncio.get_running_loop().time()
        loads = self.book.loads(fleet.workers, pending.hashes, now)
        tenant, limit = pending.tenant, self._config.queue_threshold
        if tenant.shares or tenant.background:
            limit = PROMPT_BATCHES if limit is None else limit
            free = self._with_places(fleet, loads.requests, tenant)
            if not free:
                return None
            if len(free) < len(fleet.workers):
                fleet = self._ranks.only(free)
                loads = self.book.loads(fleet.workers, pending.hashes, now)
        ahead = limit is not None and all(
            waiting > limit * batch for waiting, batch in zip(loads.prefill_tokens, fleet.batch_tokens, strict=True)
        )
        if ahead:
            prompts = self._active.prompts
            room = [] if tenant.background else prompts.room_ahead(tenant.name, fleet.workers, fleet.batch_tokens)
            if not room:
                return None
            fleet = fleet if len(room) == len(fleet.workers) else self._ranks.only(room)
            left = prompts.pass_left(room, now)
            loads = self.book.loads(fleet.workers, pending.hashes, now, pass_left=left)
        if timer:
            timer.looked_up = perf_counter()
        overlaps = self._overlaps(pending.hashes, now)
        if timer:
            timer.matched = perf_counter()
        cost = pending.cost or self._cost
        session, kept, bound = "", None, None
        if pending.session:
            session = pending.session.id
            bound = self._affinity.bound(pending.session) if self._affinity else None
            if bound and (at := fleet.at(bound.worker)) is not None:
                kept = Kept(at, bound.tokens)
        choice = choose(
            pending.prompt_tokens,
            len(pending.hashes),
            fleet,
            overlaps,
            loads,
            cost,
            self._rng,
            self.rule,
            self.stats.requests,
            kept,
            session,
        )
        if pending.pinned is None and self.instances.is_draining(choice.worker.worker_id):
            # Checking every instance for draining each time would cost more than choosing again.
            pending.avoid = {*pending.avoid, choice.worker.worker_id}
            return self._choose_and_book(pending, awaited, arriving=arriving, timer=timer)
        return self._book(pending, choice, now, ahead=ahead, bound=bound.worker if bound else None)

    def _with_places(self, fleet: Fleet, requests: Sequence[float], tenant: Tenant) -> list[WorkerRank]:
        """The workers that run fewer requests than they can; one that does not say how many counts as free."""
        under_way = self.queue.ledger.under_way(tenant)
        return [
            worker
            for worker, count, most in zip(fleet.workers, requests, fleet.max_requests, strict=True)
            if most is None or count < most_requests(most, tenant, under_way)
        ]

    def _book(
        self, pending: RequestToPlace, choice: Choice, now: float, *, ahead: bool, bound: WorkerRank | None
    ) -> KvPlacement:
        worker = choice.worker
        decision = Decision(
            request_id=pending.request_id,
            time=time.time(),
            mode="kv",
            worker_id=worker.worker_id,
            dp_rank=self._ranks.explicit_rank(worker),
            pinned=pending.pinned is not None,
            considered=len(choice.fleet.workers),
            waited=now - pending.arrived,
            choice=choice,
            session=pending.session.id if pending.session else "",
            session_worker=bound,
        )
        placement = self._active.reserve(
            self.instances.channel(worker.worker_id),
            worker,
            pending.hashes,
            now=now,
            prompt_tokens=pending.prompt_tokens,
            prefill_tokens=choice.prefill_tokens,
            group=pending.group,
            tenant=pending.tenant.name,
            ahead=ahead,
            learn=pending.learn,
            decision=decision,
            dp_rank=decision.dp_rank,
        )
        if self._affinity and pending.session:
            placement.turn = self._affinity.begin(pending.session, worker, pending.prompt_tokens)
        if self.pauses and pending.session:
            placement.session = self.pauses.began(pending.session, worker)
        self.queue.ledger.began(placement, pending)
        if self._copies and pending.copies and self._sweeping:
            self._copies.consider(pending.request, placement, choice, pending.request_id)
        self.decisions.append(decision)
        self.stats.requests += 1
        self.stats.chosen(choice.overlap.device, max(choice.overlaps.device, default=0), len(pending.hashes))
        if log.isEnabledFor(logging.DEBUG):
            log.debug("request %s: %s", pending.request_id, decision)
        return placement

    def _overlaps(self, hashes: Sequence[int], now: float) -> Overlaps:
        overlaps = self.index.match(hashes) if self.approximate is None else self.approximate.match(hashes, now)
        if overlaps.lower:
            overlaps.weights = self._tier_weights(overlaps.workers)
        return overlaps

    def _tier_weights(self, workers: Sequence[WorkerRank | None]) -> tuple[list[float], list[float]] | None:
        """What the workers have measured for their tiers, unless the configuration has weights of its own."""
        if (self._cost.host_weight, self._cost.disk_weight) != _DEFAULT_WEIGHTS:
            return None
        if self._reported is None:
            self._follow_reports(shown=True)
            return None
        return self._reported.tier_weights(workers, *_DEFAULT_WEIGHTS)

    def _uncached(self, pending: RequestToPlace) -> int:
        overlaps = self._overlaps(pending.hashes, asyncio.get_running_loop().time())
        return pending.prompt_tokens - max(overlaps.device, default=0) * self._block_size

    def _candidates(self, pending: RequestToPlace) -> Fleet:
        if pending.pinned is not None:
            check_pinned(self.instances, pending.pinned)
            ids: Sequence[int] = (pending.pinned,)
        else:
            ids = self.instances.available(pending.avoid)
        fleet = self._ranks.fleet(ids)
        dp_rank = pending.dp_rank
        if dp_rank is not None and any(worker.dp_rank != dp_rank for worker in fleet.workers):
            ranks = [worker for worker in fleet.workers if worker.dp_rank == dp_rank]
            if not ranks:
                message = f"nvext.dp_rank: no worker has a rank {dp_rank}."
                raise InvalidRequest(message, "nvext.dp_rank", "invalid_value")
            fleet = self._ranks.only(ranks)
        if not fleet.workers:
            raise self.instances.none_reachable()
        if pending.session and self._affinity and self._affinity.hard:
            bound = self._affinity.bound(pending.session)
            pending.held = bound is not None and fleet.at(bound.worker) is not None
            if bound and pending.held:
                return self._ranks.only([bound.worker])
        return fleet

    def _below_thresholds(self, fleet: Fleet, pending: RequestToPlace, *, reject: bool = True) -> Fleet:
        """The ranks below the thresholds. If there are none, the request is rejected or, without `reject`, waits."""
        loads = self.book.loads(fleet.workers, pending.hashes, asyncio.get_running_loop().time())
        reported = self._reported.get if self._reported else lambda _: NO_REPORT
        card, busy = self._runtime_of, self.thresholds.busy
        free = [
            worker
            for worker, tokens, blocks in zip(fleet.workers, loads.prefill_tokens, loads.active_blocks, strict=True)
            if not busy(card(worker.worker_id), reported(worker), tokens, blocks)
        ]
        if reject and not free:
            self.stats.rejected += 1
            raise ResourceExhausted(f"All workers of '{self.instances.name}' are busy. Please retry shortly.")
        return fleet if len(free) == len(fleet.workers) else self._ranks.only(free)

    def instance_changed(self, instance_id: int, instance: Instance | None) -> None:
        for worker in self._ranks.drop(instance_id):
            self.book.remove_worker(worker)
            if self.approximate is not None:
                self.approximate.remove_worker(worker)
        if instance is not None:
            size = self._runtime_of(instance_id)
            self._guesses = self._guesses or bool(size.get_engine_specific(DRAFT_TOKENS))
            capacity = Capacity(
                total_blocks=size.total_kv_blocks,
                max_batched_tokens=size.max_num_batched_tokens,
                max_requests=size.max_num_seqs,
            )
            for worker in self._ranks.put(instance_id, max(1, size.data_parallel_size), capacity):
                self.book.add_worker(worker)
        self.queue.dispatch()

    def _follow_reports(self, *, shown: bool = False) -> None:
        """Follow load reports once a threshold is set, or what only they say is shown: they matter for nothing else."""
        if (self._thresholds or shown) and self._reported is None and self._sweeping:
            self._reported = ReportedLoads(self._runtime.events, self.instances, self.stats, self.queue.dispatch)

    async def _reload_rule(self) -> None:
        while True:
            await asyncio.sleep(RELOAD_SECONDS)
            rule = self.rule
            try:
                loaded = await asyncio.to_thread(rule.reloaded) if rule and rule.path else None
            except InvalidArgument as error:
                log.warning("%s; the rule that was loaded before stays", error.message)
                continue
            if loaded and self.rule is rule:
                self.use_rule(loaded)
                log.info("router rule '%s' was loaded again", loaded.name)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = asyncio.get_running_loop().time()
            if self.approximate is not None:
                self.approximate.expire(now)
            if self.pauses:
                self.pauses.book.sweep(now)
            self.queue.dispatch()
