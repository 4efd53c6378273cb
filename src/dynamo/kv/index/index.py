"""Which ranks hold which blocks: exact for every order in which engines store and evict.

A match is always the true consecutive depth: a rank that evicted a block but still holds later ones of the same prompt
matches up to the gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import eq, sub

from dynamo.kv.index.overlaps import Overlaps
from dynamo.kv.index.prefixes import PrefixScan, scan_runs
from dynamo.kv.index.runs import Runs
from dynamo.kv.index.slots import Slots
from dynamo.kv.messages import KvSnapshot, Removed, RouterEvent, Stored, Tier, TierSnapshot, WorkerRank
from dynamo.protocols.errors import InvalidArgument

_DEVICE = Tier.Device


class Index:
    def __init__(self) -> None:
        self._slots = Slots()
        self._tiers = {tier: Runs() for tier in Tier}
        # Hashing an enum member costs as much as all else on the way to a block: the busiest tier has its own name.
        self._device, *self._lower = self._tiers.values()
        self._on_device = self._device.of
        self._below = [runs.of for runs in self._lower]
        self._no_match = Overlaps((), [])
        """The answer for prompts of which no rank holds a block; the same object while the ranks are the same."""

    def __len__(self) -> int:
        """Different blocks held by any rank."""
        if not any(self._below):
            return len(self._on_device)
        return len(self._on_device.keys() | {block for table in self._below for block in table})

    @property
    def workers(self) -> list[WorkerRank]:
        return list(self._slots)

    @property
    def has_tiers(self) -> bool:
        """Whether any rank holds a block in a slower tier."""
        return any(self._below)

    def blocks(self, worker: WorkerRank, tier: Tier = Tier.Device) -> int:
        """How many blocks a rank holds."""
        slot = self._slots.of.get(worker)
        return 0 if slot is None else self._tiers[tier].counts.get(slot, 0)

    def prefixes(self, most: int) -> PrefixScan:
        """The `most` largest of each tier."""
        found = []
        for tier, runs in self._tiers.items():
            if runs.of:
                found += yield from scan_runs(runs, tier, self._slots.workers, most)
        return found

    def apply(self, event: RouterEvent) -> int:
        """Apply an event; returns how many blocks the rank gained or lost. A malformed one raises InvalidArgument."""
        data = event.data
        # A plain tuple equals the WorkerRank it stands for, and costs less to make for every event.
        slot = self._slots.of.get((event.worker_id, event.dp_rank))
        runs = self._device if event.tier is _DEVICE else self._tiers[event.tier]
        if isinstance(data, Stored):
            hashes = data.sequence_hashes
            if len(hashes) > 1 and len({*hashes}) < len(hashes):
                raise InvalidArgument("the same block twice in one event")
            if slot is None:
                if not hashes:
                    return 0
                slot = self._slots.take(WorkerRank(event.worker_id, event.dp_rank))
            return runs.store(slot, hashes, data.parent)
        if slot is None:
            return 0
        if isinstance(data, Removed):
            return runs.remove(slot, data.sequence_hashes)
        return self._clear(slot)

    def match(self, hashes: Sequence[int]) -> Overlaps:
        """Each rank's overlap with the prompt whose sequence hashes these are."""
        workers, below = self._slots.workers, any(self._below)
        if not below and (not hashes or hashes[0] not in self._on_device):
            if self._no_match.workers is not workers:
                self._no_match = Overlaps(workers, [0] * len(workers))
            return self._no_match
        depths = [0] * len(workers)
        self._device.match(hashes, depths)
        return Overlaps(workers, depths, self._match_below(hashes, depths) if below else ())

    def holds(self, worker: WorkerRank, block: int) -> bool:
        """Whether a rank holds a block on its device."""
        slot = self._slots.of.get(worker)
        return slot is not None and self._device.holds(slot, block)

    def clear(self, worker: WorkerRank) -> int:
        """Forget what a rank holds, in all tiers; it keeps its slot."""
        slot = self._slots.of.get(worker)
        return 0 if slot is None else self._clear(slot)

    def remove_worker(self, worker: WorkerRank) -> None:
        self.clear(worker)
        self._slots.release(worker)

    def snapshot(self, worker: WorkerRank) -> list[TierSnapshot]:
        slot = self._slots.of.get(worker)
        if slot is None:
            return []
        return [
            TierSnapshot(tier=tier, sequence_hashes=[block for block, _ in rows], parents=[above for _, above in rows])
            for tier, runs in self._tiers.items()
            if (rows := list(runs.held(slot)))
        ]

    def replace(self, snapshot: KvSnapshot) -> None:
        """Make a rank hold exactly what its snapshot says. A malformed one changes nothing and is InvalidArgument."""
        for part in snapshot.tiers:
            if len(part.sequence_hashes) != len(part.parents):
                raise InvalidArgument(f"snapshot of worker {snapshot.worker_id}: columns of different length")
            if any(map(eq, part.sequence_hashes, part.parents)):
                raise InvalidArgument(f"snapshot of worker {snapshot.worker_id}: a block is its own parent")
        worker = WorkerRank(snapshot.worker_id, snapshot.dp_rank)
        self.clear(worker)
        slot = self._slots.take(worker)
        for part in snapshot.tiers:
            self._fill(self._tiers[part.tier], slot, part.sequence_hashes, part.parents)

    def _fill(self, runs: Runs, slot: int, blocks: list[int], parents: list[int | None]) -> None:
        """Store rows in any order, as the longest possible sequences."""
        begin, seen = 0, {*blocks[:1]}
        for end in range(1, len(blocks) + 1):
            if end == len(blocks) or parents[end] != blocks[end - 1] or blocks[end] in seen:
                runs.store(slot, blocks[begin:end], parents[begin])
                begin = end
            seen.update(blocks[end : end + 1])

    def _clear(self, slot: int) -> int:
        return sum([runs.clear(slot) for runs in self._tiers.values()])

    def _match_below(self, hashes: Sequence[int], depths: list[int]) -> list[list[int]]:
        """How far each rank continues in each slower tier from where the faster ones ended."""
        ends = depths[:]
        columns = []
        for runs in self._lower:
            begins = ends[:]
            if runs.of:
                starts: dict[int, int] = {}
                for slot, end in enumerate(begins):
                    starts[end] = starts.get(end, 0) | 1 << slot
                for begin, ranks in starts.items():
                    runs.match(hashes, ends, ranks, begin)
            columns.append(list(map(sub, ends, begins)))
        return columns
