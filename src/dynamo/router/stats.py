"""What a router counts, and the time that requests spend being routed, in seconds; the metrics read both."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from itertools import cycle
from time import perf_counter

from msgspec import field

from dynamo.kv.follow.subscriptions import FollowStats
from dynamo.runtime.metrics import Histogram

EVERY = 8
"""One choice in eight is measured: reading the clock takes about as long as hashing a short prompt."""
HIT_RATE_BOUNDS = [step / 20 for step in range(21)]
LOST_BOUNDS = [2.0**step for step in range(12)]
_FINE = [1e-6 * 2**step for step in range(15)]
_COARSE = [1e-5 * 3**step for step in range(17)]


class Overhead:
    def __init__(self) -> None:
        self.hashing = Histogram(_FINE)
        """Hashing the prompt's blocks."""
        self.matching = Histogram(_COARSE)
        """Looking up which workers hold how much of it."""
        self.choosing = Histogram(_COARSE)
        """Everything else: candidates, load, cost and the reservation."""
        self.total = Histogram(_COARSE)
        self._turns = cycle((True, *(False,) * (EVERY - 1)))

    def timer(self) -> ChoiceTimer | None:
        """A timer for a choice that begins now; None for those that are not measured."""
        return ChoiceTimer(self) if next(self._turns) else None


class ChoiceTimer:
    """The moments of one choice, set by the router as it goes."""

    __slots__ = ("_began", "_overhead", "hashed", "looked_up", "matched")

    def __init__(self, overhead: Overhead) -> None:
        self._overhead = overhead
        self._began = self.hashed = self.looked_up = self.matched = perf_counter()

    def placed(self) -> None:
        """The request was placed without waiting."""
        total = perf_counter() - self._began
        hashing, matching = self.hashed - self._began, self.matched - self.looked_up
        self._overhead.hashing.observe(hashing)
        self._overhead.matching.observe(matching)
        self._overhead.choosing.observe(total - hashing - matching)
        self._overhead.total.observe(total)


class RouterStats(FollowStats):
    requests: int = 0
    """Requests that were placed."""
    rejected: int = 0
    """Requests rejected because all workers were busy or the queue was full."""
    queue_full: int = 0
    """Those of `rejected` that found the queue full."""
    queued: int = 0
    """Requests that had to wait in the router's queue."""
    prompt_blocks: int = 0
    overlap_blocks: int = 0
    """The prompt blocks that the chosen workers had cached."""
    non_max_overlap_selections: int = 0
    """Requests placed although another worker had more of the prompt cached."""
    overlap_blocks_lost: Histogram = field(default_factory=lambda: Histogram(LOST_BOUNDS))
    """How many more blocks those other workers had, per request of these."""
    hit_rate_counts: list[int] = field(default_factory=lambda: [0] * (len(HIT_RATE_BOUNDS) + 1))
    """Requests by the cached share of their prompt: a histogram with the upper bounds HIT_RATE_BOUNDS."""
    hit_rate_sum: float = 0.0
    copies: int = 0
    """Shared prefixes sent to idle workers ahead of need."""
    copied_blocks: int = 0
    overhead: Overhead | None = None
    """Measured by KV-aware routers only."""
    rule_fallbacks: dict[str, Counter[str]] = field(default_factory=dict)
    """By rule and reason, choices that the built-in rule made in the place of a rule from a file."""
    replica_requests: int = 0
    """Requests that other routers announced."""

    def chosen(self, overlap: int, best: int, blocks: int) -> None:
        self.prompt_blocks += blocks
        self.overlap_blocks += overlap
        if best > overlap:
            self.non_max_overlap_selections += 1
            self.overlap_blocks_lost.observe(best - overlap)
        if blocks:
            rate = overlap / blocks
            self.hit_rate_counts[bisect_left(HIT_RATE_BOUNDS, rate)] += 1
            self.hit_rate_sum += rate
