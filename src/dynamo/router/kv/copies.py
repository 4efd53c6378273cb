"""Prefixes that many requests share, computed ahead on workers that have nothing to do. docs/routing.md says when.

Whoever comes there next finds the prefix cached instead of computing it, and nobody has waited for that.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from functools import partial
from math import ceil
from typing import Any

from dynamo.protocols.engine import EngineOutput, PreprocessedRequest, Routing, StopConditions
from dynamo.protocols.errors import DynamoException
from dynamo.router.kv.cost import Choice
from dynamo.router.kv.fleet import Members
from dynamo.router.kv.ledger import Booked, Ledger
from dynamo.router.kv.slots import Worker
from dynamo.router.stats import RouterStats
from dynamo.runtime import Context
from dynamo.runtime.instances import InstanceSet

log = logging.getLogger(__name__)

LEAST_SHARING = 3
"""Running requests that make a prefix worth a copy: two may be chance."""
LEAST_TOKENS = 1024
"""Less is computed as quickly as it is thought about."""
AGAIN_SECONDS = 60.0
"""A worker that has lost its copy, or never kept it, gets no other one of that prefix before."""


def idle_places(choice: Choice, depth: int, sharing: int) -> list[tuple[int, int]]:
    """Which candidates should compute the first `depth` blocks ahead, when so many requests share them.

    So many that those who hold them get no more of the running requests than others do, each one request at least.
    Each comes with how many of the blocks it lacks.
    """
    fleet, requests = choice.fleet, choice.loads.requests
    if 0 not in requests:
        return []
    enough = depth - LEAST_TOKENS / fleet.block_size
    cached = choice.cached()
    lacking = [at for at, blocks in enumerate(cached) if blocks <= enough and at != choice.at]
    holders = len(cached) - len(lacking)
    wanted = min(sharing, ceil(sharing * len(cached) / (sum(requests) + 1))) - holders
    if wanted <= 0:
        return []
    idle = [at for at in lacking if not requests[at] and 2 * depth <= fleet.total_blocks[at]]
    first = sorted(idle, key=choice.loads.sent.__getitem__)[:wanted]
    return [(at, depth - int(cached[at])) for at in first]


class Copies:
    def __init__(self, ledger: Ledger, instances: InstanceSet, members: Members, stats: RouterStats) -> None:
        self._ledger = ledger
        self._instances = instances
        self._members = members
        self._stats = stats
        self._made: dict[tuple[Worker, int], float] = {}
        """When each worker last got a copy of what begins with a block, oldest first."""
        self._running: Counter[int] = Counter()
        """Copies under way, by the block they begin with."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def consider(self, request: Any, booked: Booked, choice: Choice, request_id: str) -> None:
        """A request has just been placed: does its prefix want further copies?"""
        if not booked.chain or not _plain(request):
            return
        first, block_size = booked.chain[0], choice.fleet.block_size
        copies = self._running[first]
        depth, sharing = self._ledger.sharing(booked, LEAST_SHARING + copies)
        if depth * block_size < LEAST_TOKENS:
            return
        for at, missing in idle_places(choice, depth, sharing - copies):
            worker = choice.fleet.workers[at]
            now = asyncio.get_running_loop().time()
            if not self._may(worker, first, now):
                continue
            prefix, tokens = booked.chain[:depth], missing * block_size
            copy = _Copy(
                self._ledger.book(worker, prefix, now=now, prompt_tokens=0, prefill_tokens=tokens), self._running
            )
            self._stats.copies += 1
            self._stats.copied_blocks += missing
            log.debug(
                "request %s: worker %x rank %d is idle and computes its first %d blocks ahead: %d running requests "
                "share them", request_id, worker.worker_id, worker.dp_rank, depth, sharing - copies,
            )  # fmt: skip
            ahead = prefix_of(request, depth * block_size, self._members.told_rank(worker))
            task = asyncio.create_task(self._send(ahead, copy, f"copy-{copy.booked.key}-of-{request_id}"))
            self._tasks.add(task)
            task.add_done_callback(partial(self._sent, copy))

    def _may(self, worker: Worker, first: int, now: float) -> bool:
        for key, made in list(self._made.items()):
            if now - made < AGAIN_SECONDS:
                break
            del self._made[key]
        if (worker, first) in self._made:
            return False
        self._made[worker, first] = now
        return True

    async def _send(self, request: PreprocessedRequest, copy: _Copy, name: str) -> None:
        try:
            channel = self._instances.channel(copy.booked.worker.worker_id)
            if not channel.ready:
                await channel.open()
            channel.send(request, Context(name), copy, item_type=EngineOutput, columnar=True)
        except DynamoException as error:
            copy.fail(error)

    def _sent(self, copy: _Copy, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            copy.end()
        elif error := task.exception():
            copy.end()
            log.error("a prefix could not be computed ahead: %s", error, exc_info=error)


class _Copy:
    """A copy under way, and where its answer goes: only its coming counts."""

    def __init__(self, booked: Booked, running: Counter[int]) -> None:
        self.booked = booked
        self._running = running
        running[booked.chain[0]] += 1

    def tokens(self, ids: list[int]) -> None:
        self.booked.first_token()

    def item(self, value: Any) -> None:
        self.booked.first_token()

    def end(self) -> None:
        if not self.booked.released:
            self.booked.release()
            first = self.booked.chain[0]
            self._running[first] -= 1
            if not self._running[first]:
                del self._running[first]

    def fail(self, error: DynamoException) -> None:
        self.end()
        log.debug("worker %x computes nothing ahead: %s", self.booked.worker.worker_id, error)


def _plain(request: Any) -> bool:
    """Nothing but its tokens, adapter and salt decides what a worker caches for it."""
    return isinstance(request, PreprocessedRequest) and not request.kv_transfer_params and not request.extra_args


def prefix_of(request: PreprocessedRequest, tokens: int, dp_rank: int | None) -> PreprocessedRequest:
    """A request that leaves the beginning of another one in a worker's cache."""
    routing = request.routing or Routing()
    return PreprocessedRequest(
        model=request.model,
        token_ids=request.token_ids[:tokens],
        stop_conditions=StopConditions(max_tokens=1),
        eos_token_ids=request.eos_token_ids,
        mdc_sum=request.mdc_sum,
        routing=Routing(dp_rank=dp_rank, lora_name=routing.lora_name, cache_salt=routing.cache_salt),
    )
