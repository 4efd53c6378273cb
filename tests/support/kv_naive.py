"""The plainest possible model of what ranks hold: sets of blocks, searched in full."""

from __future__ import annotations

from dynamo.kv.index.overlaps import Overlap
from dynamo.kv.messages import Cleared, KvSnapshot, Removed, RouterEvent, Stored, Tier, WorkerRank


class NaiveIndex:
    def __init__(self) -> None:
        self.held: dict[WorkerRank, dict[Tier, set[int]]] = {}
        self.parents: dict[int, int | None] = {}
        """The parent of every block ever stored."""

    def apply(self, event: RouterEvent) -> int | None:
        """How many blocks came or went; None: refused."""
        worker = WorkerRank(event.worker_id, event.dp_rank)
        tiers = self.held.get(worker, {tier: set() for tier in Tier})
        blocks = tiers[event.tier]
        before = len(blocks)
        match event.data:
            case Stored(hashes, parent):
                if len(set(hashes)) < len(hashes):
                    return None
                if hashes:
                    self.held[worker] = tiers
                self.parents.update(zip(hashes, [parent, *hashes], strict=False))
                blocks.update(hashes)
                return len(blocks) - before
            case Removed(hashes):
                blocks.difference_update(hashes)
                return before - len(blocks)
            case Cleared():
                held = sum([len(blocks) for blocks in tiers.values()])
                if worker in self.held:
                    self.held[worker] = {tier: set() for tier in Tier}
                return held

    def replace(self, snapshot: KvSnapshot) -> None:
        tiers: dict[Tier, set[int]] = {tier: set() for tier in Tier}
        for part in snapshot.tiers:
            tiers[part.tier].update(part.sequence_hashes)
            self.parents.update(zip(part.sequence_hashes, part.parents, strict=True))
        self.held[WorkerRank(snapshot.worker_id, snapshot.dp_rank)] = tiers

    def match(self, chain: list[int]) -> dict[WorkerRank, Overlap]:
        found = {}
        for worker, tiers in self.held.items():
            at, counts = 0, []
            for tier in Tier:
                start = at
                while at < len(chain) and chain[at] in tiers[tier]:
                    at += 1
                counts.append(at - start)
            if at:
                found[worker] = Overlap(*counts)
        return found
