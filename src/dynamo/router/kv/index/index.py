"""Who holds which blocks: exact for every order in which engines store and evict.

The answer is always the true consecutive depth: a worker that evicted a block but still holds later ones of the same
chain matches up to the gap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import sub

from msgspec import Struct

from dynamo.kv.hashing import sequence_hashes
from dynamo.protocols.errors import InvalidArgument
from dynamo.protocols.kv import Cleared, KvSnapshot, Removed, RouterEvent, Stored, Tier, TierSnapshot
from dynamo.router.kv.index.blocks import Blocks
from dynamo.router.kv.index.overlaps import Overlaps
from dynamo.router.kv.index.shelf import Shelf
from dynamo.router.kv.slots import Slots, WorkerRank

_DEVICE = Tier.Device
_LOWER = (Tier.Host, Tier.Disk, Tier.External)


class Applied(Struct, frozen=True):
    """`changed` blocks came or went; `repeated` were stored before; `unknown` were removed but not held."""

    changed: int = 0
    repeated: int = 0
    unknown: int = 0


class Rejected(Struct, frozen=True):
    """Nothing was changed: this index no longer knows what the worker holds and needs its snapshot."""

    reason: str


class _Rank:
    """What one worker holds, tier by tier."""

    __slots__ = ("device", "shelves", "slot")

    def __init__(self, slot: int, blocks: Blocks) -> None:
        self.slot = slot
        self.shelves = {tier: Shelf(slot, blocks, tier) for tier in Tier}
        # Hashing an enum member costs more than all else on the way to a block: the busiest tier has its own door.
        self.device = self.shelves[Tier.Device]

    def meaning(self, name: int) -> int | None:
        """The block held under this name, in the fastest tier where there is one."""
        if (block := self.device.meaning(name)) is not None:
            return block
        return next((block for shelf in self.shelves.values() if (block := shelf.meaning(name)) is not None), None)


class Index:
    def __init__(self) -> None:
        self._slots = Slots()
        self._ranks: dict[tuple[int, int], _Rank] = {}
        self._blocks = Blocks()
        self._device = self._blocks.runs[Tier.Device]
        self._lower = [self._blocks.runs[tier] for tier in _LOWER]
        self._known = self._device.of
        self._slower = [runs.of for runs in self._lower]
        self._nothing = Overlaps((), [])
        """The answer for prompts nobody knows: always the same, as long as the workers are."""

    def __len__(self) -> int:
        """Different blocks held by anyone."""
        return len(self._blocks)

    @property
    def workers(self) -> list[WorkerRank]:
        return list(self._slots)

    def blocks(self, worker: WorkerRank, tier: Tier = Tier.Device) -> int:
        """How many blocks a worker holds."""
        rank = self._ranks.get(worker)
        return rank.shelves[tier].count if rank else 0

    def apply(self, event: RouterEvent) -> Applied | Rejected:
        # A plain tuple finds what a WorkerRank was stored under, without making one for every event.
        rank = self._ranks.get((event.worker_id, event.dp_rank))
        data = event.data
        if isinstance(data, Stored):
            return self._store(event, rank, data)
        if rank is None:
            return Applied(unknown=len(data.block_hashes) if isinstance(data, Removed) else 0)
        if isinstance(data, Cleared):
            return Applied(self._clear(rank))
        shelf = rank.device if event.tier is _DEVICE else rank.shelves[event.tier]
        changed = shelf.remove(data.block_hashes)
        return Applied(changed, 0, len(data.block_hashes) - changed)

    def match(self, chain: Sequence[int]) -> Overlaps:
        """Each worker's overlap with the prompt whose sequence hashes these are."""
        workers, below = self._slots.workers, any(self._slower)
        if not below and (not chain or chain[0] not in self._known):
            if self._nothing.workers is not workers:
                self._nothing = Overlaps(workers, [0] * len(workers))
            return self._nothing
        depths = [0] * len(workers)
        self._device.reach(chain, depths)
        if below:
            return Overlaps(workers, depths, self._below(chain, depths))
        return Overlaps(workers, depths)

    def holds(self, worker: WorkerRank, block: int) -> bool:
        """Whether a worker holds a block on its device."""
        rank = self._ranks.get(worker)
        return rank is not None and self._device.holds(rank.slot, block)

    def clear(self, worker: WorkerRank) -> int:
        """Forget what a worker holds, in all tiers; it keeps its place."""
        rank = self._ranks.get(worker)
        return self._clear(rank) if rank else 0

    def remove_worker(self, worker: WorkerRank) -> None:
        self.clear(worker)
        self._ranks.pop(worker, None)
        self._slots.release(worker)

    def snapshot(self, worker: WorkerRank) -> list[TierSnapshot]:
        rank = self._ranks.get(worker)
        return self._told(rank) if rank else []

    def snapshots(self) -> dict[WorkerRank, list[TierSnapshot]]:
        """Those of all workers, in one go."""
        common = {sequence: name for name, sequence in self._blocks.names.listed.items()}
        return {worker: self._told(self._ranks[worker], common) for worker in self._slots}

    def replace(self, snapshot: KvSnapshot) -> None:
        """Make a worker hold exactly what its snapshot says. A malformed one changes nothing."""
        for part in snapshot.tiers:
            if not len(part.block_hashes) == len(part.sequence_hashes) == len(part.parents):
                raise InvalidArgument(f"snapshot of worker {snapshot.worker_id}: columns of different length")
            if any(parent == sequence for parent, sequence in zip(part.parents, part.sequence_hashes, strict=True)):
                raise InvalidArgument(f"snapshot of worker {snapshot.worker_id}: a block is its own parent")
        worker = WorkerRank(snapshot.worker_id, snapshot.dp_rank)
        self.clear(worker)
        rank = self._rank(worker)
        for part in snapshot.tiers:
            rank.shelves[part.tier].fill(part.block_hashes, part.sequence_hashes, part.parents)

    def _rank(self, worker: WorkerRank) -> _Rank:
        rank = self._ranks.get(worker)
        if rank is None:
            rank = self._ranks[worker] = _Rank(self._slots.take(worker), self._blocks)
        return rank

    def _told(self, rank: _Rank, common: Mapping[int, int] | None = None) -> list[TierSnapshot]:
        parts = []
        for tier, shelf in rank.shelves.items():
            if shelf.count:
                names, sequences, parents = map(list, zip(*shelf.rows(common), strict=True))
                parts.append(TierSnapshot(tier=tier, block_hashes=names, sequence_hashes=sequences, parents=parents))
        return parts

    def _clear(self, rank: _Rank) -> int:
        return sum([shelf.clear() for shelf in rank.shelves.values()])

    def _store(self, event: RouterEvent, rank: _Rank | None, stored: Stored) -> Applied | Rejected:
        names = stored.block_hashes
        if len(names) != len(stored.tokens_hashes):
            return Rejected(f"{len(names)} block hashes, {len(stored.tokens_hashes)} of tokens")
        if not names:
            return Applied()
        local, above = stored.tokens_hashes, stored.parent_hash
        if above is not None:
            if rank is None:
                return Rejected(f"parent block {above} is unknown")
            if event.tier is _DEVICE and rank.device.go_on(names, local, above):
                return Applied(len(names))
            if above in names:
                return Rejected(f"block {above} is stored as its own parent")
        elif rank is None:
            rank = self._rank(WorkerRank(event.worker_id, event.dp_rank))
        parent = None
        if above is not None and (parent := rank.meaning(above)) is None:
            return Rejected(f"parent block {above} is unknown")
        shelf = rank.device if event.tier is _DEVICE else rank.shelves[event.tier]
        changed = shelf.store(names, sequence_hashes(local, parent), parent)
        return Applied(changed, len(names) - changed)

    def _below(self, chain: Sequence[int], depths: list[int]) -> list[list[int]]:
        """How far each worker goes on in each slower tier from where the faster ones ended."""
        ends = depths[:]
        columns = []
        for runs in self._lower:
            begins = ends[:]
            if runs.of:
                starts: dict[int, int] = {}
                for slot, end in enumerate(begins):
                    starts[end] = starts.get(end, 0) | 1 << slot
                for begin, workers in starts.items():
                    runs.reach(chain, ends, workers, begin)
            columns.append(list(map(sub, ends, begins)))
        return columns
