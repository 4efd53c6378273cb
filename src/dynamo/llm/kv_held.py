"""What an exact source of KV events holds: the plain book that stands in for an index where nothing needs checking."""

from __future__ import annotations

from dynamo.protocols.kv import Removed, RouterEvent, Stored, Tier, TierSnapshot
from dynamo.router.kv import Applied, WorkerRank


class Held:
    """One rank's device blocks in the order they came, each with its parent, by the sequence hashes that name them."""

    def __init__(self) -> None:
        self._parents: dict[int, int | None] = {}

    def apply(self, event: RouterEvent) -> Applied:
        data, parents = event.data, self._parents
        if isinstance(data, Stored):
            hashes = data.block_hashes
            parents.update(zip(hashes, (data.parent_hash, *hashes), strict=False))
            return Applied(len(hashes))
        if isinstance(data, Removed):
            for block_hash in data.block_hashes:
                parents.pop(block_hash, None)
            return Applied(len(data.block_hashes))
        gone = len(parents)
        parents.clear()
        return Applied(gone)

    def snapshot(self, worker: WorkerRank) -> list[TierSnapshot]:
        if not self._parents:
            return []
        hashes = list(self._parents)
        return [
            TierSnapshot(
                tier=Tier.Device, block_hashes=hashes, sequence_hashes=hashes, parents=list(self._parents.values())
            )
        ]
