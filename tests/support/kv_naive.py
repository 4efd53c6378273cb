"""The plainest possible model of what workers hold: a list of facts, searched in full."""

from __future__ import annotations

from dynamo.kv.hashing import sequence_hashes
from dynamo.protocols.kv import Cleared, KvSnapshot, Removed, RouterEvent, Stored, Tier
from dynamo.router.kv.index.index import Applied
from dynamo.router.kv.index.overlaps import Overlap
from dynamo.router.kv.slots import WorkerRank


class NaiveIndex:
    def __init__(self) -> None:
        self.held: dict[WorkerRank, dict[Tier, dict[int, int]]] = {}
        """Sequence hash by name, per worker and tier."""
        self.parents: dict[int, int | None] = {}
        """Of every block ever heard of."""

    def apply(self, event: RouterEvent) -> Applied | None:
        """None: refused."""
        worker = WorkerRank(event.worker_id, event.dp_rank)
        tiers = self.held.get(worker, {tier: {} for tier in Tier})
        names = tiers[event.tier]
        match event.data:
            case Stored(hashes, local, above):
                if len(hashes) != len(local):
                    return None
                if not hashes:
                    return Applied()
                parent = None
                if above is not None:
                    known = [tiers[tier][above] for tier in Tier if above in tiers[tier]]
                    if not known or above in hashes:
                        return None
                    parent = known[0]
                changed = 0
                for name, sequence in zip(hashes, sequence_hashes(local, parent), strict=True):
                    changed += names.get(name) != sequence
                    names[name] = sequence
                    self.parents[sequence] = parent
                    parent = sequence
                self.held[worker] = tiers
                return Applied(changed, repeated=len(hashes) - changed)
            case Removed(hashes):
                changed = sum([names.pop(name, None) is not None for name in hashes])
                return Applied(changed, unknown=len(hashes) - changed)
            case Cleared():
                changed = sum([len(blocks) for blocks in tiers.values()])
                if worker in self.held:
                    self.held[worker] = {tier: {} for tier in Tier}
                return Applied(changed)

    def replace(self, snapshot: KvSnapshot) -> None:
        tiers: dict[Tier, dict[int, int]] = {tier: {} for tier in Tier}
        for part in snapshot.tiers:
            tiers[part.tier].update(zip(part.block_hashes, part.sequence_hashes, strict=True))
            self.parents.update(zip(part.sequence_hashes, part.parents, strict=True))
        self.held[WorkerRank(snapshot.worker_id, snapshot.dp_rank)] = tiers

    def match(self, chain: list[int]) -> dict[WorkerRank, Overlap]:
        found = {}
        for worker, tiers in self.held.items():
            at, counts = 0, []
            for tier in Tier:
                start, blocks = at, set(tiers[tier].values())
                while at < len(chain) and chain[at] in blocks:
                    at += 1
                counts.append(at - start)
            if at:
                found[worker] = Overlap(*counts)
        return found
