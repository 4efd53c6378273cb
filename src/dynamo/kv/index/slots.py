"""Numbers ranks densely, so that the bits of an int are a set of ranks."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import compress, count

from dynamo.kv.messages import WorkerRank

_BITS = bytes(int(char == ord("1")) for char in range(256))


class Slots:
    """Assigns each rank the lowest free slot, so that bitmasks stay as narrow as possible."""

    def __init__(self) -> None:
        self.workers: tuple[WorkerRank | None, ...] = ()
        """By slot. Replaced at every change: the same object means that nothing has changed."""
        self.of: dict[tuple[int, int], int] = {}
        """The slot of each rank that has one; changed here only."""
        self._free: list[int] = []

    def __iter__(self) -> Iterator[WorkerRank]:
        return filter(None, self.workers)

    def take(self, worker: WorkerRank) -> int:
        """The rank's slot, assigned if it has none."""
        slot = self.of.get(worker)
        if slot is None:
            slot = heapq.heappop(self._free) if self._free else len(self.workers)
            self._assign(slot, worker)
            self.of[worker] = slot
        return slot

    def release(self, worker: WorkerRank) -> int | None:
        slot = self.of.pop(worker, None)
        if slot is not None:
            self._assign(slot, None)
            heapq.heappush(self._free, slot)
        return slot

    def _assign(self, slot: int, worker: WorkerRank | None) -> None:
        self.workers = (*self.workers[:slot], worker, *self.workers[slot + 1 :])


def slots_in(mask: int) -> Iterable[int]:
    """The positions of the bits that are set, lowest first."""
    if mask.bit_count() > 8:
        return compress(count(), f"{mask:b}"[::-1].encode().translate(_BITS))
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found


def fill(column: list[int], mask: int, value: int) -> None:
    """Write `value` at all slots of a mask."""
    count = mask.bit_count()
    if count == 1:
        column[mask.bit_length() - 1] = value
    elif count == len(column):
        column[:] = [value] * count
    else:
        for slot in slots_in(mask):
            column[slot] = value
