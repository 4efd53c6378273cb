"""Prefixes that many requests share, computed ahead on workers that have nothing to do. docs/routing.md says when.

Whoever comes there next finds the prefix cached instead of computing it, and nobody has waited for that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from math import ceil, inf
from typing import Any

from dynamo.protocols.engine import EngineOutput, PreprocessedRequest, Routing, StopConditions
from dynamo.protocols.errors import DynamoException
from dynamo.protocols.kv import WorkerRank
from dynamo.router.kv.choice.cost import Choice
from dynamo.router.kv.choice.fleet import Members
from dynamo.router.kv.load.ledger import Booked, Ledger
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


class Made:
    """Who was told lately to compute which prefix, known by its last block."""

    def __init__(self) -> None:
        self._when: dict[tuple[WorkerRank, int], float] = {}
        """Oldest first."""

    def add(self, worker: WorkerRank, last: int, now: float) -> None:
        for key, when in list(self._when.items()):
            if now - when < AGAIN_SECONDS:
                break
            del self._when[key]
        self._when[worker, last] = now

    def of(self, last: int, now: float) -> Callable[[WorkerRank], bool]:
        """Whether a worker was told of this prefix within AGAIN_SECONDS."""
        return lambda worker: now - self._when.get((worker, last), -inf) < AGAIN_SECONDS


def idle_places(choice: Choice, depth: int, sharing: int, told: Callable[[WorkerRank], bool]) -> list[tuple[int, int]]:
    """Which candidates should compute the first `depth` blocks ahead, when so many requests share them.

    So many that those who hold them get no more of the running requests than others do, each one request at least.
    Each comes with how many of the blocks it lacks. Who was `told` already is left out.
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
    idle = [
        at for at in lacking if not requests[at] and 2 * depth <= fleet.total_blocks[at] and not told(fleet.workers[at])
    ]
    first = sorted(idle, key=choice.loads.sent.__getitem__)[:wanted]
    return [(at, depth - int(cached[at])) for at in first]


class Copies:
    def __init__(self, ledger: Ledger, instances: InstanceSet, members: Members, stats: RouterStats) -> None:
        self._ledger = ledger
        self._instances = instances
        self._members = members
        self._stats = stats
        self._made = Made()
        self._tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def consider(self, request: Any, booked: Booked, choice: Choice, request_id: str) -> None:
        """A request has just been placed: does its prefix want further copies?"""
        if not booked.chain or not _plain(request):
            return
        block_size = choice.fleet.block_size
        depth, sharing = self._ledger.sharing(booked, LEAST_SHARING)
        if depth * block_size < LEAST_TOKENS:
            return
        now = asyncio.get_running_loop().time()
        last = booked.chain[depth - 1]
        for at, missing in idle_places(choice, depth, sharing, self._made.of(last, now)):
            worker = choice.fleet.workers[at]
            self._made.add(worker, last, now)
            prefix, tokens = booked.chain[:depth], missing * block_size
            copy = _Copy(
                self._ledger.book(worker, prefix, now=now, prompt_tokens=0, prefill_tokens=tokens, tokens=None)
            )
            self._stats.copies += 1
            self._stats.copied_blocks += missing
            log.debug(
                "request %s: worker %x rank %d is idle and computes its first %d blocks ahead: %d running requests "
                "share them", request_id, worker.worker_id, worker.dp_rank, depth, sharing,
            )  # fmt: skip
            ahead = prefix_of(request, depth * block_size, self._members.told_rank(worker))
            task = asyncio.create_task(self._send(ahead, copy, f"copy-{copy.booked.key}-of-{request_id}"))
            self._tasks.add(task)
            task.add_done_callback(partial(self._sent, copy))

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

    def __init__(self, booked: Booked) -> None:
        self.booked = booked

    def tokens(self, ids: list[int]) -> None:
        self.booked.first_token()

    def item(self, value: Any) -> None:
        self.booked.first_token()

    def end(self) -> None:
        self.booked.release()

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
