"""The plainest possible model of what workers hold: a list of facts, searched in full."""

from __future__ import annotations

from dynamo.protocols.kv import Cleared, Removed, RouterEvent, Stored, Tier
from dynamo.router.kv.hashing import sequence_hashes
from dynamo.router.kv.index import Overlap
from dynamo.router.kv.slots import Worker


class NaiveIndex:
    def __init__(self) -> None:
        self.held: dict[Worker, dict[Tier, dict[int, int]]] = {}

    def apply(self, event: RouterEvent) -> bool:
        worker = Worker(event.worker_id, event.dp_rank)
        tiers = self.held.get(worker, {tier: {} for tier in Tier})
        match event.data:
            case Stored(names, local, parent_hash):
                parent = None
                if parent_hash is not None:
                    known = [tiers[tier][parent_hash] for tier in Tier if parent_hash in tiers[tier]]
                    if not known or parent_hash in names:
                        return False
                    parent = known[0]
                chain = sequence_hashes(local, parent)
                tiers[event.tier].update(zip(names, chain, strict=True))
                self.held[worker] = tiers
            case Removed(block_hashes):
                for block_hash in block_hashes:
                    tiers[event.tier].pop(block_hash, None)
            case Cleared():
                if worker in self.held:
                    self.held[worker] = {tier: {} for tier in Tier}
        return True

    def match(self, chain: list[int]) -> dict[Worker, Overlap]:
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
