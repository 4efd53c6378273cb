"""The KV-aware router of one model: hashes the prompt, asks the index and the load book, chooses and books at once."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from time import perf_counter
from typing import Any

from dynamo.kv.hashing import PromptHashes
from dynamo.protocols.card import ModelRuntimeConfig
from dynamo.protocols.engine import PreprocessedRequest
from dynamo.protocols.errors import (
    DynamoException,
    InvalidRequest,
    ResourceExhausted,
    RouterQueueLimitExceeded,
    Unavailable,
)
from dynamo.protocols.instance import Instance
from dynamo.protocols.kv import WorkerRank
from dynamo.router.config import RouterConfig
from dynamo.router.decision import Decision
from dynamo.router.kv.choice.copies import Copies
from dynamo.router.kv.choice.cost import Choice, CostConfig, choose
from dynamo.router.kv.choice.fleet import Capacity, Fleet, Members
from dynamo.router.kv.choice.prompt_estimate import rough_tokens
from dynamo.router.kv.choice.queue import Queue, Ticket
from dynamo.router.kv.index.approximate import ApproximateIndex
from dynamo.router.kv.index.index import Index
from dynamo.router.kv.index.overlaps import Overlaps
from dynamo.router.kv.load.book import LoadBook
from dynamo.router.kv.load.ledger import Booked, Ledger
from dynamo.router.kv.sync.follow import Follower
from dynamo.router.kv.sync.rank_sync import FollowConfig
from dynamo.router.kv.sync.replicas import Replicas
from dynamo.router.overhead import ChoiceTimer, Overhead
from dynamo.router.reported import NOTHING, ReportedLoads
from dynamo.router.router import REMEMBERED, Placement, WorkerLoad, pinned_channel
from dynamo.router.stats import RouterStats
from dynamo.router.thresholds import Thresholds
from dynamo.runtime import DistributedRuntime
from dynamo.runtime.instances import InstanceSet
from dynamo.runtime.plane.base import Channel

log = logging.getLogger(__name__)

SWEEP_SECONDS = 30.0


class KvPlacement(Placement):
    __slots__ = ("_booked",)

    def __init__(self, booked: Booked, channel: Channel, decision: Decision) -> None:
        super().__init__(booked.worker.worker_id, channel, decision, decision.dp_rank)
        self._booked = booked

    def first_token(self) -> None:
        self._booked.first_token()

    def _freed(self) -> None:
        self._booked.release()


class KvAwareRouter:
    def __init__(
        self,
        config: RouterConfig,
        instances: InstanceSet,
        runtime: DistributedRuntime,
        block_size: int,
        runtime_of: Callable[[int], ModelRuntimeConfig],
        *,
        follow: FollowConfig | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.instances = instances
        self.decisions: deque[Decision] = deque(maxlen=REMEMBERED)
        self.overhead = Overhead()
        self.stats = RouterStats(overhead=self.overhead)
        self.index = Index()
        self.approximate = None if config.use_kv_events else ApproximateIndex(ttl=config.ttl)
        self.book = LoadBook()
        self._config = config
        self._cost = config.cost
        self._runtime = runtime
        self._block_size = block_size
        self._hashes = PromptHashes(block_size)
        self._runtime_of = runtime_of
        self._follow = follow
        self._rng = rng or random.Random()
        self._queue = Queue(config.queue_policy, self._try, lambda ticket: self._candidates(ticket).workers)
        self._ledger = Ledger(self.book, self.approximate, self._queue.eased)
        self._thresholds = config.thresholds()
        self._reported: ReportedLoads | None = None
        self._copies: Copies | None = None
        self._members = Members(block_size)
        self._watch: ChoiceTimer | None = None
        """On the choice being made."""
        self._forget: Callable[[], None] = lambda: None
        self._sweeping: asyncio.Task[None] | None = None

    @property
    def follower(self) -> Follower | None:
        return self._ledger.follower

    @property
    def replicas(self) -> Replicas | None:
        return self._ledger.replicas

    @property
    def thresholds(self) -> Thresholds:
        return self._thresholds

    @thresholds.setter
    def thresholds(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self._listen_to_reports()
        self._queue.eased()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def active(self) -> int:
        return len(self.book)

    @property
    def known_blocks(self) -> int:
        if self.approximate is not None:
            return len(self.approximate)
        return sum(self.index.blocks(worker) for worker in self.index.workers)

    def start(self) -> None:
        self._forget = self.instances.follow(self.member_changed)
        if self.approximate is None and self._config.overlap_weight:
            follower = self._ledger.follower = Follower(
                self._runtime,
                self.instances,
                self.index,
                self._members.ranks,
                self.stats,
                block_size=self._block_size,
                config=self._follow,
            )
            follower.start()
            if self._config.copy_prefixes:
                self._copies = Copies(self._ledger, self.instances, self._members, self.stats)
        if self._config.replica_sync:
            self._ledger.replicas = Replicas(
                self._runtime.events, self.instances, self.book, self.approximate, self.stats, self._queue.eased
            )
        self._sweeping = asyncio.create_task(self._sweep())
        self._listen_to_reports()

    async def close(self) -> None:
        self._forget()
        for ticket in self._queue:
            self._queue.refuse(ticket, self.instances.nobody())
        if self._sweeping:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
            self._sweeping = None
        follower, replicas, reported, copies = self.follower, self.replicas, self._reported, self._copies
        self._ledger.follower = self._ledger.replicas = self._reported = self._copies = None
        for part in (copies, follower, replicas, reported):
            if part:
                await part.close()

    async def open(
        self,
        request: Any,
        *,
        request_id: str = "",
        pinned: int | None = None,
        avoid: Collection[int] = (),
        cost: CostConfig | None = None,
        copies: bool = True,
        learn: bool = True,
    ) -> Placement:
        """As `Router` says; the last three are as in `Ticket`."""
        watch = self._watch = self.overhead.watch()
        ticket = self._ticket(request, request_id, pinned, avoid)
        ticket.cost, ticket.copies, ticket.learn = cost, copies and pinned is None, learn
        if watch:
            watch.hashed = perf_counter()
        last: DynamoException | None = None
        while True:
            try:
                placement = await self._placed(ticket)
            except Unavailable:
                raise self.instances.nobody(last) from last
            if watch and ticket.placed is None and last is None:
                watch.placed()
            try:
                await placement.connect()
            except DynamoException as error:
                if pinned is not None:
                    raise
                self.instances.unreachable(placement.instance_id, error)
                ticket.avoid = {*ticket.avoid, placement.instance_id}
                last = error
            else:
                return placement

    def peek(self, request: PreprocessedRequest, cost: CostConfig | None = None, *, everybody: bool = False) -> Choice:
        """What would be chosen now, or if nobody were leaving or busy; nothing is booked, nobody waits."""
        draining = () if everybody else [id for id in self.instances.ids() if self.instances.channel(id).draining]
        ticket = self._ticket(request, "", None, draining)
        fleet = self._candidates(ticket)
        if self._thresholds and not everybody:
            fleet = self._free_of(fleet, ticket)
        now = asyncio.get_running_loop().time()
        loads = self.book.loads(fleet.workers, ticket.chain, now)
        overlaps = self._overlaps(ticket.chain, now)
        return choose(ticket.prompt_tokens, len(ticket.chain), fleet, overlaps, loads, cost or self._cost, self._rng)

    def loads(self) -> list[WorkerLoad]:
        """What this router has booked, and others have told it."""
        workers = self._members.workers
        loads = self.book.loads(workers, (), asyncio.get_running_loop().time())
        columns = zip(workers, loads.active_blocks, loads.prefill_tokens, strict=True)
        return [WorkerLoad(worker, int(blocks), int(tokens)) for worker, blocks, tokens in columns]

    @property
    def waiting_tokens(self) -> int:
        return sum(ticket.prompt_tokens for ticket in self._queue)

    def _ticket(self, request: Any, request_id: str, pinned: int | None, avoid: Collection[int]) -> Ticket:
        arrived = asyncio.get_running_loop().time()
        if not isinstance(request, PreprocessedRequest):
            tokens = rough_tokens(request)
            return Ticket(
                request=request,
                request_id=request_id,
                chain=(),
                prompt_tokens=tokens,
                pinned=pinned,
                avoid=avoid,
                arrived=arrived,
            )
        routing = request.routing
        return Ticket(
            request=request,
            request_id=request_id,
            chain=self._hashes.of(
                request.token_ids,
                lora_name=routing.lora_name if routing else None,
                cache_salt=routing.cache_salt if routing else None,
            ),
            tokens=request.token_ids,
            prompt_tokens=len(request.token_ids),
            priority=(routing.priority or 0) if routing else 0,
            pinned=pinned,
            dp_rank=routing.dp_rank if routing else None,
            avoid=avoid,
            arrived=arrived,
        )

    async def _placed(self, ticket: Ticket) -> Placement:
        """A place at once, or when its turn has come."""
        if not self._queue:
            placement = self._try(ticket, arriving=True)
            if placement:
                return placement
        elif self._thresholds:
            self._free_of(self._candidates(ticket), ticket)
        if len(self._queue) >= self._config.queue_limit * max(1, len(self.instances)):
            self.stats.rejected += 1
            self.stats.queue_full += 1
            raise RouterQueueLimitExceeded(f"{len(self._queue)} requests wait already. Please retry shortly.")
        self.stats.queued += 1
        return await self._queue.wait(ticket, self._uncached(ticket))

    def _try(self, ticket: Ticket, awaited: Collection[WorkerRank] = (), *, arriving: bool = False) -> Placement | None:
        """Choose and book; None when all that come into question have too much to do, or others wait for them."""
        fleet = self._candidates(ticket)
        if awaited:
            fleet = self._members.only([worker for worker in fleet.workers if worker not in awaited])
        if self._thresholds:
            fleet = self._free_of(fleet, ticket, refuse=arriving)
        now = asyncio.get_running_loop().time()
        loads = self.book.loads(fleet.workers, ticket.chain, now)
        limit = self._config.queue_threshold
        if limit is not None and all(
            waiting > limit * batch for waiting, batch in zip(loads.prefill_tokens, fleet.batch_tokens, strict=True)
        ):
            return None
        if self._watch:
            self._watch.looked_up = perf_counter()
        overlaps = self._overlaps(ticket.chain, now)
        if self._watch:
            self._watch.matched = perf_counter()
        cost = ticket.cost or self._cost
        choice = choose(ticket.prompt_tokens, len(ticket.chain), fleet, overlaps, loads, cost, self._rng)
        if ticket.pinned is None and self.instances.channel(choice.worker.worker_id).draining:
            # Whoever leaves says so once; asking all of them each time would cost more than choosing again.
            ticket.avoid = {*ticket.avoid, choice.worker.worker_id}
            return self._try(ticket, awaited, arriving=arriving)
        return self._booked(ticket, choice, now)

    def _booked(self, ticket: Ticket, choice: Choice, now: float) -> Placement:
        worker = choice.worker
        channel = self.instances.channel(worker.worker_id)
        booked = self._ledger.book(
            worker,
            ticket.chain,
            now=now,
            prompt_tokens=ticket.prompt_tokens,
            prefill_tokens=choice.prefill_tokens,
            tokens=ticket.tokens,
            learn=ticket.learn,
        )
        if self._copies and ticket.copies:
            self._copies.consider(ticket.request, booked, choice, ticket.request_id)
        decision = Decision(
            request_id=ticket.request_id,
            time=time.time(),
            mode="kv",
            worker_id=worker.worker_id,
            dp_rank=self._members.told_rank(worker),
            pinned=ticket.pinned is not None,
            considered=len(choice.fleet.workers),
            waited=now - ticket.arrived,
            choice=choice,
        )
        self.decisions.append(decision)
        self.stats.requests += 1
        best = max(choice.overlaps.device, default=0)
        self.stats.chosen(choice.overlap.device, best, len(ticket.chain))
        if log.isEnabledFor(logging.DEBUG):
            log.debug("request %s: %s", ticket.request_id, decision)
        return KvPlacement(booked, channel, decision)

    def _overlaps(self, chain: Sequence[int], now: float) -> Overlaps:
        return self.index.match(chain) if self.approximate is None else self.approximate.match(chain, now)

    def _uncached(self, ticket: Ticket) -> int:
        overlaps = self._overlaps(ticket.chain, asyncio.get_running_loop().time())
        best = max(overlaps.device, default=0)
        return ticket.prompt_tokens - best * self._block_size

    def _candidates(self, ticket: Ticket) -> Fleet:
        if ticket.pinned is not None:
            pinned_channel(self.instances, ticket.pinned)
            ids: Sequence[int] = (ticket.pinned,)
        else:
            ids = self.instances.fit(ticket.avoid)
        fleet = self._members.fleet(ids)
        if ticket.dp_rank is not None:
            fleet = self._of_rank(fleet, ticket.dp_rank)
        if not fleet.workers:
            raise self.instances.nobody()
        return fleet

    def _of_rank(self, fleet: Fleet, dp_rank: int) -> Fleet:
        if all(worker.dp_rank == dp_rank for worker in fleet.workers):
            return fleet
        ranks = [worker for worker in fleet.workers if worker.dp_rank == dp_rank]
        if not ranks:
            raise InvalidRequest(f"nvext.dp_rank: no worker has a rank {dp_rank}.", "nvext.dp_rank", "invalid_value")
        return self._members.only(ranks)

    def _free_of(self, fleet: Fleet, ticket: Ticket, *, refuse: bool = True) -> Fleet:
        """Those of the ranks that are below the thresholds; if there is none, that is an error where one may refuse."""
        loads = self.book.loads(fleet.workers, ticket.chain, asyncio.get_running_loop().time())
        said = self._reported.get if self._reported else lambda _: NOTHING
        card, busy = self._runtime_of, self._thresholds.busy
        free = [
            worker
            for worker, tokens, blocks in zip(fleet.workers, loads.prefill_tokens, loads.active_blocks, strict=True)
            if not busy(card(worker.worker_id), said(worker), tokens, blocks)
        ]
        if refuse and not free:
            self.stats.rejected += 1
            raise ResourceExhausted(f"All workers of '{self.instances.name}' are busy. Please retry shortly.")
        return fleet if len(free) == len(fleet.workers) else self._members.only(free)

    def member_changed(self, instance_id: int, instance: Instance | None) -> None:
        for worker in self._members.drop(instance_id):
            self.book.remove_worker(worker)
            if self.approximate is not None:
                self.approximate.remove_worker(worker)
        if instance is None:
            self._ledger.places.pop(instance_id, None)
        else:
            size = self._runtime_of(instance_id)
            capacity = Capacity(total_blocks=size.total_kv_blocks, max_batched_tokens=size.max_num_batched_tokens)
            self._ledger.places[instance_id] = (instance.namespace, instance.component)
            for worker in self._members.put(instance_id, max(1, size.data_parallel_size), capacity):
                self.book.add_worker(worker)
        self._queue.eased()

    def _listen_to_reports(self) -> None:
        """Reports are only listened to once somebody has set a threshold."""
        if self._thresholds and self._reported is None and self._sweeping:
            self._reported = ReportedLoads(self._runtime.events, self.instances, self.stats, self._queue.eased)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = asyncio.get_running_loop().time()
            if self.approximate is not None:
                self.approximate.expire(now)
            self._queue.eased()
