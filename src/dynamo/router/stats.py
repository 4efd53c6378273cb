"""The counters of a router, which the metrics read."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

from msgspec import field

from dynamo.kv.follow.stats import FollowStats
from dynamo.router.overhead import Overhead
from dynamo.runtime.metrics.instruments import Histogram

HIT_RATE_BOUNDS = [step / 20 for step in range(21)]
LOST_BOUNDS = [2.0**step for step in range(12)]


class RouterStats(FollowStats):
    requests: int = 0
    """Requests that were placed."""
    rejected: int = 0
    """Requests refused because all workers were busy or the queue was full."""
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
