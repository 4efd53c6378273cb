"""Which idle workers should compute a shared prefix ahead of the requests that need it.

docs/routing-index.md explains the rule.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, inf

from dynamo.kv.messages import WorkerRank
from dynamo.protocols.engine import PreprocessedRequest, Routing, StopConditions
from dynamo.router.choice.choose import Choice

LEAST_SHARING = 3
"""Active requests that make a prefix worth a copy: two may be chance."""
LEAST_TOKENS = 1024
"""A shorter prefix is computed too quickly for a copy to pay."""
AGAIN_SECONDS = 60.0
"""A worker is not sent the same prefix again within this time, even if it has lost the copy."""


class RecentCopies:
    """Which workers were recently sent which prefix, identified by its last block."""

    def __init__(self) -> None:
        self._when: dict[tuple[WorkerRank, int], float] = {}
        """Oldest first."""

    def add(self, worker: WorkerRank, last: int, now: float) -> None:
        for key, when in list(self._when.items()):
            if now - when < AGAIN_SECONDS:
                break
            del self._when[key]
        self._when[worker, last] = now

    def sent(self, last: int, now: float) -> Callable[[WorkerRank], bool]:
        """Tells whether a worker was sent this prefix within AGAIN_SECONDS."""
        return lambda worker: now - self._when.get((worker, last), -inf) < AGAIN_SECONDS


def idle_candidates(
    choice: Choice, depth: int, sharing: int, recent: Callable[[WorkerRank], bool]
) -> list[tuple[int, int]]:
    """Candidates that should compute the first `depth` blocks, and how many of the blocks each lacks.

    `sharing` requests have these blocks in common. Enough workers should hold them that holders get no more of the
    running requests than other workers, but at most one per request. Workers that are `recent` are left out.
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
        at
        for at in lacking
        if not requests[at] and 2 * depth <= fleet.total_blocks[at] and not recent(fleet.workers[at])
    ]
    first = sorted(idle, key=choice.loads.sent.__getitem__)[:wanted]
    return [(at, depth - int(cached[at])) for at in first]


def prefix_of(request: PreprocessedRequest, tokens: int) -> PreprocessedRequest:
    """A request that makes a worker cache the first `tokens` of another request."""
    routing = request.routing or Routing()
    return PreprocessedRequest(
        model=request.model,
        token_ids=request.token_ids[:tokens],
        stop_conditions=StopConditions(max_tokens=1),
        eos_token_ids=request.eos_token_ids,
        mdc_sum=request.mdc_sum,
        routing=Routing(lora_name=routing.lora_name, cache_salt=routing.cache_salt),
    )
