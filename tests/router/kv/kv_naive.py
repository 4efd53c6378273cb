"""The plainest possible model of what workers hold: a list of facts, searched in full."""

from __future__ import annotations

from dynamo.protocols.kv import Cleared, Removed, RouterEvent, Snapshot, Stored, Tier
from dynamo.router.kv.hashing import sequence_hashes
from dynamo.router.kv.index import Applied
from dynamo.router.kv.overlaps import Overlap
from dynamo.router.kv.slots import Worker


class NaiveIndex:
    def __init__(self) -> None:
        self.held: dict[Worker, dict[Tier, dict[int, int]]] = {}
        """Sequence hash by name, per worker and tier."""
        self.parents: dict[Tier, dict[int, int | None]] = {tier: {} for tier in Tier}
        """Of every block ever heard of in a tier, as told last."""

    def apply(self, event: RouterEvent) -> Applied | None:
        """None: refused."""
        worker = Worker(event.worker_id, event.dp_rank)
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
                chain = sequence_hashes(local, parent)
                if self._fits(event.tier, [*zip(chain, [parent, *chain], strict=False)]) < len(chain):
                    return None
                changed = 0
                for name, sequence in zip(hashes, chain, strict=True):
                    changed += names.get(name) != sequence
                    names[name] = sequence
                    self.parents[event.tier][sequence] = parent
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

    def replace(self, snapshot: Snapshot) -> int:
        """Row after row; those that go on where the one before ended are believed up to the first that cannot be."""
        worker, refused = Worker(snapshot.worker_id, snapshot.dp_rank), 0
        tiers = self.held[worker] = {tier: {} for tier in Tier}
        for part in snapshot.tiers:
            stretches: list[list[tuple[int, int, int | None]]] = []
            seen: set[int] = set()
            for row in zip(part.block_hashes, part.sequence_hashes, part.parents, strict=True):
                if stretches and row[2] == stretches[-1][-1][1] and row[1] not in seen:
                    stretches[-1].append(row)
                else:
                    stretches.append([row])
                seen.add(row[1])
            for stretch in stretches:
                fitting = self._fits(part.tier, [(sequence, parent) for _, sequence, parent in stretch])
                refused += len(stretch) - fitting
                for name, sequence, parent in stretch[:fitting]:
                    tiers[part.tier][name] = sequence
                    self.parents[part.tier][sequence] = parent
        return refused

    def _fits(self, tier: Tier, blocks: list[tuple[int, int | None]]) -> int:
        """How many blocks, from the first on, nobody holds under another parent."""
        held = {block for tiers in self.held.values() for block in tiers[tier].values()}
        wrong = (
            at for at, (block, parent) in enumerate(blocks) if block in held and self.parents[tier][block] != parent
        )
        return next(wrong, len(blocks))

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
