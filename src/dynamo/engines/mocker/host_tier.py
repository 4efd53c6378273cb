"""Host memory below the simulated cache: blocks go there when the cache has no room for them, and come back from it.

What is kept, and whether restoring pays, is decided by `dynamo.tiers`, as for real engines; only copies are modelled.
They run beside the computing: a prompt waits until its blocks have come, others do not. A step that computes prompts is
longer only if copying the blocks that it displaces takes longer than computing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Ids

from msgspec import Struct

from dynamo.protocols.kv import KvChange, Tier
from dynamo.tiers import KvSegment, MemoryTier, PrefillCost, TierStore

from .args import MockerArgs
from .sequence import Sequence
from .timing import Timing

_CALIBRATION_TOKENS = 64
_ROUNDING = 1e-9


class MockSegment(KvSegment, frozen=True):
    """One block without its bytes."""

    modelled_size: int = 0

    @property
    def size(self) -> int:
        return self.modelled_size


class Restore(Struct, frozen=True):
    """Blocks on their way to the cache, for one request."""

    sequence: Sequence
    blocks: int
    ready_at: float


class HostTier:
    """The tier of one rank. Time is an input: `begin_step` sets it."""

    def __init__(self, args: MockerArgs, timing: Timing) -> None:
        self._block_tokens = args.block_size
        self._block_bytes = args.block_size * args.kv_bytes_per_token
        self._read_seconds = self._seconds(args, args.bandwidth_g2_to_g1_gbps)
        self._write_seconds = self._seconds(args, args.bandwidth_g1_to_g2_gbps)
        self._memory = MemoryTier(args.num_g2_blocks * self._block_bytes)
        self._now = 0.0
        self.store = TierStore(args.block_size, PrefillCost(), memory=self._memory, clock=lambda: self._now)
        self.restoring: deque[Restore] = deque()
        """One after the other: they share one link."""
        self._link_free_at = 0.0
        self._parents: dict[int, int | None] = {}
        """Of each block in the cache."""
        self._displaced = 0
        """Blocks copied out in this step."""
        self._calibrate(timing)

    def begin_step(self, now: float) -> list[Restore]:
        """The restores that have ended by now."""
        self._now = now
        self._displaced = 0
        ready = []
        while self.restoring and self.restoring[0].ready_at <= now + _ROUNDING:
            ready.append(self.restoring.popleft())
        return ready

    def end_step(self, seconds: float, prefilled: int, decoded: int) -> float:
        """How long the step takes that computes so many tokens in `seconds`."""
        if prefilled:
            self.store.prefill.step(prefilled, prefilled + decoded, seconds)
            wait = max(0.0, self._displaced * self._write_seconds - seconds)
            self.store.costs[Tier.Host].store_seconds += wait
            return seconds + wait
        if not decoded and self.restoring:
            return max(0.0, self.restoring[0].ready_at - self._now)
        return seconds

    def take(self, keys: Ids[int]) -> int:
        """How many of the first of these blocks are to be restored; they count as restored."""
        count = 0
        for key in keys[: len(self.store.find(keys))]:
            found = self.store.get(key)
            if found is None:
                break
            segment, tier, _ = found
            self.store.restored(segment, tier, self._block_tokens, self._read_seconds)
            count += 1
        return count

    def restore(self, sequence: Sequence, blocks: int) -> None:
        """Begin to copy blocks that were taken into those of the request."""
        self._link_free_at = max(self._now, self._link_free_at) + blocks * self._read_seconds
        self.restoring.append(Restore(sequence, blocks, self._link_free_at))

    def cancel(self, sequence: Sequence) -> bool:
        """Forget a restore; False if there is none for this request."""
        others = deque(one for one in self.restoring if one.sequence is not sequence)
        found = len(others) < len(self.restoring)
        self.restoring = others
        return found

    def cached(self, hashes: list[int], parent: int | None) -> None:
        """The cache holds these blocks now."""
        self._parents.update(zip(hashes, (parent, *hashes), strict=False))

    def evicted(self, hashes: list[int]) -> None:
        """The cache holds these blocks no longer."""
        for block in hashes:
            parent = self._parents.pop(block)
            if self.store.wanted(block):
                self.store.store(MockSegment((block,), parent, b"", self._block_bytes), 0.0)
                self._displaced += 1
            else:
                self._memory.get(block)  # used until now: among the last to give way

    def clear(self) -> None:
        self._parents.clear()
        self.store.clear()

    def take_changes(self) -> list[tuple[Tier, KvChange]]:
        return self.store.take_changes()

    def _calibrate(self, timing: Timing) -> None:
        """Measure computing and restoring once, as engines with real tiers do when they start."""
        self.store.prefill.computed(_CALIBRATION_TOKENS, timing.prefill(_CALIBRATION_TOKENS))
        seconds = self._read_seconds * _CALIBRATION_TOKENS / self._block_tokens
        self.store.measured(Tier.Host, _CALIBRATION_TOKENS, seconds)

    def _seconds(self, args: MockerArgs, gigabytes_per_second: float) -> float:
        """To copy one block."""
        if not gigabytes_per_second or not args.speedup_ratio:
            return 0.0
        return self._block_bytes / (gigabytes_per_second * 1e9) / args.speedup_ratio
