"""Who holds which blocks: exact for every order in which engines store and evict.

Every block is known by its sequence hash, which names the whole prefix up to it; per hash one int holds the workers as
bits. A worker that evicted a block but still holds a later one of the same chain has a gap. Workers without gaps are
searched by doubling steps, workers with gaps block by block, so the answer is always the true consecutive depth.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from dynamo.protocols.errors import InvalidArgument
from dynamo.protocols.kv import Cleared, Removed, RouterEvent, Snapshot, Stored, Tier, TierSnapshot
from dynamo.router.kv.gaps import Gaps
from dynamo.router.kv.hashing import sequence_hashes
from dynamo.router.kv.search import prefix_runs, walked_runs
from dynamo.router.kv.slots import Slots, Worker, slots_in

_DEVICE = Tier.Device
_LOWER = (Tier.Host, Tier.Disk, Tier.External)
_Group = tuple[tuple[int, ...], int]
"""Overlap per tier, and the workers it is true of."""


class Overlap(Struct, frozen=True, cache_hash=True):
    """Leading blocks of a prompt a worker holds: on the device, then each slower tier from where the last ended."""

    device: int = 0
    host: int = 0
    disk: int = 0
    external: int = 0


class Applied(Struct, frozen=True):
    """`changed` blocks came or went; `repeated` were stored before; `unknown` were removed but not held."""

    changed: int = 0
    repeated: int = 0
    unknown: int = 0


class Rejected(Struct, frozen=True):
    """Nothing was changed: this index no longer knows what the worker holds and needs its snapshot."""

    reason: str


class _Rank:
    """One worker's view: its names for blocks in each tier, and where its device chains have gaps."""

    __slots__ = ("aliases", "bit", "device", "gaps", "names")

    def __init__(self, slot: int) -> None:
        self.bit = 1 << slot
        self.names: dict[Tier, dict[int, int]] = {tier: {} for tier in Tier}
        # Hashing an enum member costs more than all else on the way to a block: the busiest tier has its own door.
        self.device = self.names[Tier.Device]
        self.aliases: dict[tuple[Tier, int], int] = {}
        """How many further names a block has beyond its first."""
        self.gaps = Gaps()

    def sequence_of(self, block_hash: int) -> int | None:
        for names in self.names.values():
            if (found := names.get(block_hash)) is not None:
                return found
        return None


class Index:
    def __init__(self) -> None:
        self._slots = Slots()
        self._ranks: dict[tuple[int, int], _Rank] = {}
        self._holders: dict[Tier, dict[int, int]] = {tier: {} for tier in Tier}
        self._device = self._holders[Tier.Device]
        self._lower = [self._holders[tier] for tier in _LOWER]
        self._parents: dict[int, int | None] = {}
        self._holed = 0

    def __len__(self) -> int:
        """Different blocks held by anyone."""
        return len(self._parents)

    @property
    def workers(self) -> list[Worker]:
        return list(self._slots)

    def blocks(self, worker: Worker, tier: Tier = Tier.Device) -> int:
        """How many blocks a worker holds."""
        rank = self._ranks.get(worker)
        return len(rank.names[tier]) if rank else 0

    def apply(self, event: RouterEvent) -> Applied | Rejected:
        # A plain tuple finds what a Worker was stored under, without making one for every event.
        rank = self._ranks.get((event.worker_id, event.dp_rank))
        data = event.data
        if isinstance(data, Stored):
            return self._store(event, rank, data)
        if rank is None:
            return Applied(unknown=len(data.block_hashes) if isinstance(data, Removed) else 0)
        if isinstance(data, Cleared):
            return Applied(self._clear(rank))
        if event.tier is _DEVICE:
            changed = self._evict(rank, data.block_hashes)
        else:
            changed = sum([self._forget(rank, event.tier, name) for name in data.block_hashes])
        return Applied(changed, 0, len(data.block_hashes) - changed)

    def match(self, chain: Sequence[int]) -> dict[Worker, Overlap]:
        """Each worker's overlap with the prompt whose sequence hashes these are; who holds nothing is left out."""
        device = self._device
        alive = device.get(chain[0], 0) if chain else 0
        groups: list[_Group] = [((depth,), mask) for depth, mask in prefix_runs(device, chain, alive & ~self._holed)]
        if alive & self._holed:
            groups += [((end,), mask) for _, end, mask in walked_runs(device, chain, {0: alive & self._holed})]
        if any(self._lower):
            groups = self._extend(chain, groups)
        found: dict[Worker, Overlap] = {}
        workers = self._slots.workers
        for counts, mask in groups:
            overlap = Overlap(*counts)
            for slot in slots_in(mask):
                if (worker := workers[slot]) is not None:
                    found[worker] = overlap
        return found

    def clear(self, worker: Worker) -> int:
        """Forget what a worker holds, in all tiers; it keeps its place."""
        rank = self._ranks.get(worker)
        return self._clear(rank) if rank else 0

    def remove_worker(self, worker: Worker) -> None:
        self.clear(worker)
        self._ranks.pop(worker, None)
        self._slots.release(worker)

    def snapshot(self, worker: Worker) -> list[TierSnapshot]:
        rank = self._ranks.get(worker)
        if rank is None:
            return []
        return [
            TierSnapshot(
                tier=tier,
                block_hashes=list(names),
                sequence_hashes=list(names.values()),
                parents=[self._parents[sequence] for sequence in names.values()],
            )
            for tier, names in rank.names.items()
            if names
        ]

    def replace(self, snapshot: Snapshot) -> None:
        """Make a worker hold exactly what its snapshot says. A malformed one changes nothing."""
        for part in snapshot.tiers:
            if not len(part.block_hashes) == len(part.sequence_hashes) == len(part.parents):
                raise InvalidArgument(f"snapshot of worker {snapshot.worker_id}: columns of different length")
            if any(parent == sequence for parent, sequence in zip(part.parents, part.sequence_hashes, strict=True)):
                raise InvalidArgument(f"snapshot of worker {snapshot.worker_id}: a block is its own parent")
        worker = Worker(snapshot.worker_id, snapshot.dp_rank)
        self.clear(worker)
        rank = self._rank(worker)
        for part in snapshot.tiers:
            for block_hash, sequence, parent in zip(part.block_hashes, part.sequence_hashes, part.parents, strict=True):
                self._learn(rank, part.tier, block_hash, sequence, parent)
        self._mark(rank)

    def _rank(self, worker: Worker) -> _Rank:
        rank = self._ranks.get(worker)
        if rank is None:
            rank = self._ranks[worker] = _Rank(self._slots.take(worker))
        return rank

    def _clear(self, rank: _Rank) -> int:
        gone = 0
        for tier, names in rank.names.items():
            for sequence in set(names.values()):
                self._drop(self._holders[tier], sequence, rank.bit)
            gone += len(names)
            names.clear()
        rank.aliases.clear()
        rank.gaps = Gaps()
        self._mark(rank)
        return gone

    def _store(self, event: RouterEvent, rank: _Rank | None, stored: Stored) -> Applied | Rejected:
        if not stored.blocks:
            return Applied()
        hashes, local = zip(*stored.blocks, strict=True)
        parent = None
        if stored.parent_hash is not None:
            if stored.parent_hash in hashes:
                return Rejected(f"block {stored.parent_hash} is stored as its own parent")
            if rank is None or (parent := rank.sequence_of(stored.parent_hash)) is None:
                return Rejected(f"parent block {stored.parent_hash} is unknown")
        if rank is None:
            rank = self._rank(Worker(event.worker_id, event.dp_rank))
        chain = sequence_hashes(local, parent)
        changed = self._append(rank, hashes, chain, parent) if event.tier is _DEVICE else 0
        if changed < len(hashes):
            if changed:
                hashes, chain, parent = hashes[changed:], chain[changed:], chain[changed - 1]
            for block_hash, sequence in zip(hashes, chain, strict=True):
                changed += self._learn(rank, event.tier, block_hash, sequence, parent)
                parent = sequence
            self._mark(rank)
        return Applied(changed, len(stored.blocks) - changed)

    def _append(self, rank: _Rank, hashes: Sequence[int], chain: list[int], parent: int | None) -> int:
        """Store the leading blocks of a chain that are in every way new to this worker's device; returns how many."""
        names, holders, parents, bit = rank.device, self._device, self._parents, rank.bit
        if rank.gaps or (parent is not None and not holders.get(parent, 0) & bit):
            return 0
        get = holders.get
        before = parent
        new = 0
        for block_hash, sequence in zip(hashes, chain, strict=True):
            if block_hash in names:
                break
            mask = get(sequence)
            if mask is None:
                # The bit itself where nobody else holds the block: one int object for all of them.
                holders[sequence] = bit
                parents[sequence] = before
            elif mask & bit:
                break
            else:
                holders[sequence] = mask | bit
            names[block_hash] = sequence
            before = sequence
            new += 1
        if new:
            rank.gaps.append(parent, chain[new - 1])
        return new

    def _evict(self, rank: _Rank, hashes: list[int]) -> int:
        """`_forget` for many device blocks, written out because engines evict as often as they store."""
        names, holders, parents, bit = rank.device, self._device, self._parents, rank.bit
        lost = rank.gaps.lose
        lower = any(self._lower)
        changed = 0
        for block_hash in hashes:
            sequence = names.get(block_hash)
            if sequence is None:
                continue
            changed += 1
            if rank.aliases or lower:
                self._forget(rank, Tier.Device, block_hash)
                continue
            del names[block_hash]
            mask = holders[sequence]
            if mask == bit:
                del holders[sequence]
                parent = parents.pop(sequence)
            else:
                holders[sequence] = mask ^ bit
                parent = parents[sequence]
            lost(sequence, parent)
        self._mark(rank)
        return changed

    def _learn(self, rank: _Rank, tier: Tier, block_hash: int, sequence: int, parent: int | None) -> bool:
        names, holders = rank.names[tier], self._holders[tier]
        known = names.get(block_hash)
        if known == sequence:
            return False
        if known is not None:
            self._forget(rank, tier, block_hash)
        names[block_hash] = sequence
        mask = holders.get(sequence, 0)
        if mask & rank.bit:
            rank.aliases[tier, sequence] = rank.aliases.get((tier, sequence), 0) + 1
            return True
        holders[sequence] = mask | rank.bit
        parent = self._parents.setdefault(sequence, parent)
        if tier is Tier.Device:
            rank.gaps.gain(sequence, parent, parent is not None and bool(holders.get(parent, 0) & rank.bit))
        return True

    def _forget(self, rank: _Rank, tier: Tier, block_hash: int) -> bool:
        sequence = rank.names[tier].pop(block_hash, None)
        if sequence is None:
            return False
        if rank.aliases and (tier, sequence) in rank.aliases:
            rank.aliases[tier, sequence] -= 1
            if not rank.aliases[tier, sequence]:
                del rank.aliases[tier, sequence]
            return True
        parent = self._drop(self._holders[tier], sequence, rank.bit)
        if tier is Tier.Device:
            rank.gaps.lose(sequence, parent)
        return True

    def _drop(self, holders: dict[int, int], sequence: int, bit: int) -> int | None:
        """Clear one bit and return the block's parent, forgetting a block that nobody holds any more."""
        mask = holders[sequence] ^ bit
        if mask:
            holders[sequence] = mask
            return self._parents[sequence]
        del holders[sequence]
        for others in self._holders.values():
            if sequence in others:
                return self._parents[sequence]
        return self._parents.pop(sequence)

    def _mark(self, rank: _Rank) -> None:
        if rank.gaps:
            self._holed |= rank.bit
        else:
            self._holed &= ~rank.bit

    def _extend(self, chain: Sequence[int], groups: list[_Group]) -> list[_Group]:
        """Go on in each slower tier from where the faster ones ended."""
        rest = (1 << len(self._slots.workers)) - 1
        for _, mask in groups:
            rest &= ~mask
        groups = [*groups, ((0,), rest)]
        for tier in _LOWER:
            starts: dict[int, int] = {}
            for counts, mask in groups:
                starts[sum(counts)] = starts.get(sum(counts), 0) | mask
            runs = walked_runs(self._holders[tier], chain, starts) if self._holders[tier] else []
            longer: list[_Group] = []
            for counts, mask in groups:
                start = sum(counts)
                for begin, end, held in runs:
                    if begin == start and held & mask:
                        longer.append(((*counts, end - begin), held & mask))
                        mask &= ~held
                if mask:
                    longer.append(((*counts, 0), mask))
            groups = longer
        return [(counts, mask) for counts, mask in groups if any(counts)]
