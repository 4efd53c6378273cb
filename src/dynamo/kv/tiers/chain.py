"""The tiers of one worker, nearest first: where segments are, what they hold as KV events, what each is worth."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from dynamo.kv.messages import KvChange, Tier, TierReport
from dynamo.kv.prompt_cost import Pace
from dynamo.kv.tiers.costs import TierCosts
from dynamo.kv.tiers.memory import MemoryTier
from dynamo.kv.tiers.segment import KvSegment

log = logging.getLogger(__name__)


class HeldSegments(Protocol):
    """What a tier holds, within a limit of bytes."""

    limit: int
    used: int

    def __contains__(self, key: int, /) -> bool: ...

    def listen(self, changed: Callable[[KvChange], None]) -> None:
        """Call `changed` for all that is held, and for each change from now on."""


class TierChain:
    """Moves no bytes: those who do tell it how long that took."""

    def __init__(
        self,
        prefill: Pace,
        clock: Callable[[], float],
        *,
        memory: MemoryTier | None = None,
        disk: HeldSegments | None = None,
    ) -> None:
        self.prefill = prefill
        self.memory = memory
        held: tuple[tuple[Tier, HeldSegments | None], ...] = ((Tier.Host, memory), (Tier.Disk, disk))
        self.held = {tier: where for tier, where in held if where is not None}
        self.costs = {tier: TierCosts() for tier in self.held}
        self._in_use = dict.fromkeys(self.costs, True)
        """Which tiers the log last named as used."""
        self._changes: deque[tuple[Tier, KvChange]] = deque()
        self.announced = False
        """Set it, then `take_changes` begins with all that is held; before, it has none."""
        self._listening = False
        self._clock = clock

    def find(self, keys: Sequence[int]) -> list[Tier]:
        """In which tier each of the first keys is, as far as they are held where restoring is worthwhile."""
        tiers = [(tier, held) for tier, held in self.held.items() if self._readable(tier)]
        found: list[Tier] = []
        for key in keys:
            tier = next((tier for tier, held in tiers if key in held), None)
            if tier is None:
                break
            found.append(tier)
        for tier, costs in self.costs.items():
            costs.hits += found.count(tier)
            costs.misses += len(keys) - len(found)
        return found

    def restored(self, segment: KvSegment, tier: Tier, tokens: int, seconds: float) -> None:
        """It was used; `seconds` counts everything from the tier to the device."""
        self.costs[tier].restored(tokens, segment.size, seconds, self.prefill, self._clock())
        self._log_use(tier)
        if tier is Tier.Disk and self.memory is not None:
            self.memory.put(segment)

    def measured(self, tier: Tier, tokens: int, seconds: float) -> None:
        """Restoring `tokens` took, or would have taken, `seconds`."""
        self.costs[tier].measured(tokens, seconds, self.prefill, self._clock())
        self._log_use(tier)

    def failed(self, tier: Tier) -> None:
        self.costs[tier].failures += 1

    def take_changes(self) -> list[tuple[Tier, KvChange]]:
        """What happened to the blocks of all tiers since the last call."""
        if self.announced and not self._listening:
            self._listening = True
            for tier, held in self.held.items():
                held.listen(partial(self._changed, tier))
        changes = []
        while self._changes:
            changes.append(self._changes.popleft())
        return changes

    def weights(self) -> tuple[float | None, float | None]:
        """What a block in memory and on disk is worth; in steps, as each change is sent to the routers."""
        found = (self.costs.get(tier) for tier in (Tier.Host, Tier.Disk))
        host, disk = (costs.weight(self.prefill) if costs else None for costs in found)
        return (None if host is None else round(host, 1)), (None if disk is None else round(disk, 1))

    def reports(self) -> list[TierReport]:
        """What each tier holds and has done, for people who look at the fleet."""
        return [
            TierReport(
                tier=tier,
                used=costs.worthwhile(self.prefill),
                bytes=self.held[tier].used,
                limit_bytes=self.held[tier].limit,
                hits=costs.hits,
                misses=costs.misses,
                restored_tokens=costs.restored_tokens,
                saved_seconds=round(costs.saved_seconds, 3),
            )
            for tier, costs in self.costs.items()
        ]

    def _changed(self, tier: Tier, change: KvChange) -> None:
        self._changes.append((tier, change))

    def _readable(self, tier: Tier) -> bool:
        """Whether to look for segments there: restoring is worthwhile, or is to be measured again."""
        costs = self.costs[tier]
        return costs.worthwhile(self.prefill) or self._clock() >= costs.retry_at

    def _wants(self, tier: Tier, key: int) -> bool:
        """Whether a segment is to be stored there: not held yet, and storing is worth it."""
        held = self.held.get(tier)
        return held is not None and self.costs[tier].may_store(self.prefill) and key not in held

    def _place(self, tier: Tier) -> str:
        """What the log calls it."""
        return "disk" if tier is Tier.Disk else "memory"

    def _log_use(self, tier: Tier) -> None:
        """One line when a tier turns itself off, and one when it is used again."""
        costs = self.costs[tier]
        used = costs.worthwhile(self.prefill)
        if used == self._in_use[tier]:
            return
        self._in_use[tier] = used
        where = self._place(tier)
        restoring, computing = (1e3 * (each.seconds_per_token or 0.0) for each in (costs.restoring, self.prefill))
        if used:
            log.info("KV blocks are restored from %s again: %.4g ms per token, computing takes %.4g ms", where,
                     restoring, computing)  # fmt: skip
        else:
            log.warning("KV blocks are not restored from %s any more: that takes %.4g ms per token, computing %.4g ms; "
                        "measuring it again every minute", where, restoring, computing)  # fmt: skip
