"""What a router counts. Whoever publishes metrics reads it."""

from __future__ import annotations

from bisect import bisect_left

from msgspec import Struct, field

from dynamo.router.overhead import Overhead

HIT_RATE_BOUNDS = [step / 20 for step in range(21)]


class RouterStats(Struct):
    requests: int = 0
    """Choices made."""
    rejected: int = 0
    """Refused because all workers were busy or the queue was full."""
    queue_full: int = 0
    """Those of them that found the queue full."""
    queued: int = 0
    """Had to wait here for a worker."""
    prompt_blocks: int = 0
    overlap_blocks: int = 0
    """Of those, what the chosen workers had cached."""
    non_max_overlap_selections: int = 0
    """Another worker had more of the prompt."""
    overlap_blocks_lost: int = 0
    """How much more."""
    hit_rate_counts: list[int] = field(default_factory=lambda: [0] * (len(HIT_RATE_BOUNDS) + 1))
    """Choices by share of the prompt that was cached, each bounded above by HIT_RATE_BOUNDS."""
    hit_rate_sum: float = 0.0
    copies: int = 0
    """Shared prefixes that idle workers were told to compute ahead."""
    copied_blocks: int = 0
    overhead: Overhead | None = None
    """For routers that look at caches."""
    events: int = 0
    """KV events applied."""
    snapshots: int = 0
    """Times a worker was asked for all it holds."""
    heard: int = 0
    """Requests that other routers told to have placed."""
    malformed: int = 0
    """Messages that were none."""

    def chosen(self, overlap: int, best: int, blocks: int) -> None:
        self.prompt_blocks += blocks
        self.overlap_blocks += overlap
        if best > overlap:
            self.non_max_overlap_selections += 1
            self.overlap_blocks_lost += best - overlap
        if blocks:
            rate = overlap / blocks
            self.hit_rate_counts[bisect_left(HIT_RATE_BOUNDS, rate)] += 1
            self.hit_rate_sum += rate
