"""Host memory and a disk below the simulated cache: blocks that have no room there go down, and come back.

What is kept, and whether restoring pays, is decided by `dynamo.kv.tiers`, as for real engines; copies are modelled.
They run beside the computing: a prompt waits until its blocks have come, others do not. A step that computes prompts is
longer only if copying the blocks that it displaces takes longer than computing. No step waits for the disk: a block
that leaves host memory while too many others wait to be written is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Ids
from itertools import chain

from msgspec import Struct

from dynamo.kv.messages import Tier
from dynamo.kv.prompt_cost import Pace
from dynamo.kv.tiers import KvSegment, MemoryTier, TierChain

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


class CopyLink:
    """Copies blocks in one direction, one after the other."""

    def __init__(self, args: MockerArgs, gigabytes_per_second: float) -> None:
        self.block_seconds = 0.0
        if gigabytes_per_second and args.speedup_ratio:
            size = args.block_size * args.kv_bytes_per_token
            self.block_seconds = size / (gigabytes_per_second * 1e9) / args.speedup_ratio
        self.free_at = 0.0

    def copy(self, blocks: int, now: float) -> float:
        """When `blocks` more will have been copied."""
        self.free_at = max(now, self.free_at) + blocks * self.block_seconds
        return self.free_at

    def behind(self, blocks: int, now: float) -> bool:
        """Whether more than `blocks` are waiting."""
        return self.free_at - now > blocks * self.block_seconds + _ROUNDING


class MockTiers(TierChain):
    """The tiers of one rank. Time is an input: `begin_step` sets it."""

    def __init__(self, args: MockerArgs, timing: Timing) -> None:
        self._block_tokens = args.block_size
        self._block_bytes = args.block_size * args.kv_bytes_per_token
        self._host_blocks = args.num_g2_blocks
        self._host = MemoryTier(args.num_g2_blocks * self._block_bytes, displaced=self._to_disk)
        self._disk = MemoryTier(args.num_g3_blocks * self._block_bytes)
        self.now = 0.0
        disk = self._disk if args.num_g3_blocks else None
        super().__init__(Pace(), lambda: self.now, memory=self._host, disk=disk)
        self._to_device = CopyLink(args, args.bandwidth_g2_to_g1_gbps)
        self._from_disk = CopyLink(args, args.bandwidth_g3_to_g2_gbps)
        self._disk_writes = CopyLink(args, args.bandwidth_g2_to_g3_gbps)
        self._displacing_seconds = CopyLink(args, args.bandwidth_g1_to_g2_gbps).block_seconds
        host = self._to_device.block_seconds
        self._seconds = {Tier.Host: host, Tier.Disk: self._from_disk.block_seconds + host}
        """To restore one block: those on disk are read into host memory first."""
        self._reading: deque[Restore] = deque()
        """From the disk; then they are copied like any other."""
        self._copying: deque[Restore] = deque()
        self._parents: dict[int, int | None] = {}
        """The parent of each block in the cache."""
        self._displaced = 0
        """Blocks copied out of the cache in this step."""
        self._calibrate(timing)

    @property
    def restoring(self) -> bool:
        return bool(self._copying or self._reading)

    def waiting(self) -> list[Sequence]:
        """The requests whose blocks are on their way."""
        return [restore.sequence for restore in chain(self._copying, self._reading)]

    def begin_step(self, now: float) -> list[Restore]:
        """The restores that have ended by now."""
        self.now = now
        self._displaced = 0
        for read in _ended(self._reading, now):
            self._copy(read.sequence, read.blocks, read.ready_at)
        return _ended(self._copying, now)

    def end_step(self, seconds: float, prefilled: int, decoded: int) -> float:
        """How long a step takes whose tokens are computed in `seconds`."""
        if prefilled:
            self.prefill.add_step(prefilled, prefilled + decoded, seconds)
            wait = max(0.0, self._displaced * self._displacing_seconds - seconds)
            self.costs[Tier.Host].store_seconds += wait
            return seconds + wait
        if not decoded and self.restoring:
            return max(0.0, min(queue[0].ready_at for queue in (self._copying, self._reading) if queue) - self.now)
        return seconds

    def take(self, keys: Ids[int]) -> list[Tier]:
        """Where the first of these blocks are to be restored from; they count as restored."""
        found = self.find(keys)
        if Tier.Disk in found:
            self._keep(keys[: len(found)])
        taken: list[Tier] = []
        for key, tier in zip(keys, found, strict=False):
            if not self._readable(tier):
                break
            if tier is Tier.Disk and self.costs[tier].take_trial(self.prefill, self.now):
                self.measured(tier, self._block_tokens, self._seconds[tier])  # nobody waits for that
                break
            segment = (self._disk if tier is Tier.Disk else self._host).get(key)
            if segment is None:
                break
            self.restored(segment, tier, self._block_tokens, self._seconds[tier])
            taken.append(tier)
        return taken

    def restore(self, sequence: Sequence, taken: Ids[Tier]) -> None:
        """Begin to copy blocks that were taken into those of the request."""
        if on_disk := taken.count(Tier.Disk):
            read_at = self._from_disk.copy(on_disk, self.now)
            self._reading.append(Restore(sequence, len(taken), read_at))
        else:
            self._copy(sequence, len(taken), self.now)

    def cancel(self, sequence: Sequence) -> bool:
        """Forget a restore; False if there is none for this request."""
        for queue in (self._copying, self._reading):
            for restore in queue:
                if restore.sequence is sequence:
                    queue.remove(restore)
                    return True
        return False

    def cached(self, hashes: list[int], parent: int | None) -> None:
        """The cache holds these blocks now."""
        self._parents.update(zip(hashes, (parent, *hashes), strict=False))

    def evicted(self, hashes: list[int]) -> None:
        """The cache holds these blocks no longer."""
        for block in hashes:
            parent = self._parents.pop(block)
            if self._wants(Tier.Host, block):
                self._host.put(MockSegment((block,), parent, b"", self._block_bytes))
                self.costs[Tier.Host].stored(self._block_tokens, self._block_bytes, 0.0)
                self._displaced += 1
            else:
                self._host.get(block)  # used until now: among the last to give way

    def clear(self) -> None:
        self._parents.clear()
        self._host.clear()
        self._disk.clear()
        self._changes.clear()

    def _copy(self, sequence: Sequence, blocks: int, now: float) -> None:
        self._copying.append(Restore(sequence, blocks, self._to_device.copy(blocks, now)))

    def _keep(self, keys: Ids[int]) -> None:
        """What comes from the disk must not displace from host memory, or from the disk, what is restored after it."""
        for key in keys:
            self._host.get(key)
            self._disk.get(key)

    def _to_disk(self, segment: KvSegment) -> None:
        """This block leaves host memory."""
        if self._disk.get(segment.key) is not None or not self._wants(Tier.Disk, segment.key):
            return
        if self._disk_writes.behind(self._host_blocks, self.now):
            return
        self._disk.put(segment)
        self._disk_writes.copy(1, self.now)
        self.costs[Tier.Disk].stored(self._block_tokens, segment.size, 0.0)

    def _calibrate(self, timing: Timing) -> None:
        """Measure computing and restoring once, as engines with real tiers do when they start."""
        self.prefill.add(_CALIBRATION_TOKENS, timing.prefill(_CALIBRATION_TOKENS))
        for tier in self.held:
            seconds = self._seconds[tier] * _CALIBRATION_TOKENS / self._block_tokens
            self.measured(tier, _CALIBRATION_TOKENS, seconds)


def _ended(restores: deque[Restore], now: float) -> list[Restore]:
    ended = []
    while restores and restores[0].ready_at <= now + _ROUNDING:
        ended.append(restores.popleft())
    return ended
