"""How much of one prompt each rank holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from dynamo.protocols.kv import WorkerRank


class Overlap(Struct, frozen=True):
    """Leading blocks of a prompt that a rank holds: on the device, then in each slower tier where the last ended."""

    device: int = 0
    host: int = 0
    disk: int = 0
    external: int = 0


class Overlaps(Mapping[WorkerRank, Overlap]):
    """Columns by slot, which is all a decision needs. As a mapping it leaves out ranks that hold nothing."""

    __slots__ = ("_found", "device", "lower", "workers")

    def __init__(
        self, workers: Sequence[WorkerRank | None], device: list[int], lower: Sequence[list[int]] = ()
    ) -> None:
        self.workers = workers
        """By slot; never changed."""
        self.device = device
        self.lower = lower
        """Host, disk and external; empty if no rank holds a block there."""
        self._found: dict[WorkerRank, Overlap] | None = None

    @classmethod
    def of(cls, held: Mapping[WorkerRank, Overlap]) -> Overlaps:
        rows = [(overlap.device, overlap.host, overlap.disk, overlap.external) for overlap in held.values()]
        device, *lower = [[row[tier] for row in rows] for tier in range(4)]
        return cls(tuple(held), device, lower)

    def at(self, slot: int) -> Overlap:
        return Overlap(self.device[slot], *[column[slot] for column in self.lower])

    def __getitem__(self, worker: WorkerRank) -> Overlap:
        return self._all()[worker]

    def __iter__(self) -> Iterator[WorkerRank]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def _all(self) -> dict[WorkerRank, Overlap]:
        if self._found is None:
            none = Overlap()
            every = ((worker, self.at(slot)) for slot, worker in enumerate(self.workers) if worker is not None)
            self._found = {worker: overlap for worker, overlap in every if overlap != none}
        return self._found
