"""How much of one prompt each rank holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from dynamo.kv.messages import WorkerRank


class Overlap(Struct, frozen=True):
    """Leading blocks of a prompt that a rank holds on the device, and those that follow them in each slower tier."""

    device: int = 0
    host: int = 0
    disk: int = 0
    external: int = 0


class Overlaps:
    """The overlap of every rank, as columns by slot."""

    __slots__ = ("device", "lower", "weights", "workers")

    def __init__(
        self, workers: Sequence[WorkerRank | None], device: list[int], lower: Sequence[list[int]] = ()
    ) -> None:
        self.workers = workers
        """By slot; never modified."""
        self.device = device
        self.lower = lower
        """Host, disk and external; empty if no rank holds a block there."""
        self.weights: tuple[list[float], list[float]] | None = None
        """What a block in host memory and on disk is worth to each rank; None: to all what the configuration says."""

    @classmethod
    def of(cls, held: Mapping[WorkerRank, Overlap]) -> Overlaps:
        rows = [(overlap.device, overlap.host, overlap.disk, overlap.external) for overlap in held.values()]
        device, *lower = [[row[tier] for row in rows] for tier in range(4)]
        return cls(tuple(held), device, lower)

    def at(self, slot: int) -> Overlap:
        return Overlap(self.device[slot], *[column[slot] for column in self.lower])

    def by_worker(self) -> dict[WorkerRank, Overlap]:
        """The overlap of each rank, without the ranks that hold nothing."""
        none = Overlap()
        every = ((worker, self.at(slot)) for slot, worker in enumerate(self.workers) if worker is not None)
        return {worker: overlap for worker, overlap in every if overlap != none}
