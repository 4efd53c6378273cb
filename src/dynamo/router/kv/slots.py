"""Workers numbered densely, so that a set of workers is the bits of one int."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import compress, count
from typing import NamedTuple

_BITS = bytes(int(char == ord("1")) for char in range(256))


class WorkerRank(NamedTuple):
    """One data-parallel rank of one worker: what a request is sent to."""

    worker_id: int
    dp_rank: int = 0


class Slots:
    """Gives each worker the lowest free number, so the bitmask stays as wide as there are workers."""

    def __init__(self) -> None:
        self.workers: tuple[WorkerRank | None, ...] = ()
        """By number. Another object after every change, so that whoever kept one can tell."""
        self._slot: dict[WorkerRank, int] = {}
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._slot)

    def __iter__(self) -> Iterator[WorkerRank]:
        return iter(self._slot)

    def get(self, worker: WorkerRank) -> int | None:
        return self._slot.get(worker)

    def take(self, worker: WorkerRank) -> int:
        """The worker's number, a new one if it has none."""
        slot = self._slot.get(worker)
        if slot is None:
            slot = heapq.heappop(self._free) if self._free else len(self.workers)
            self._put(slot, worker)
            self._slot[worker] = slot
        return slot

    def release(self, worker: WorkerRank) -> int | None:
        slot = self._slot.pop(worker, None)
        if slot is not None:
            self._put(slot, None)
            heapq.heappush(self._free, slot)
        return slot

    def _put(self, slot: int, worker: WorkerRank | None) -> None:
        self.workers = (*self.workers[:slot], worker, *self.workers[slot + 1 :])


def slots_in(mask: int) -> Iterable[int]:
    """The numbers of the bits that are set, lowest first."""
    if mask.bit_count() > 8:
        return compress(count(), f"{mask:b}"[::-1].encode().translate(_BITS))
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found


def put(column: list[int], mask: int, value: int) -> None:
    """Write a value for all workers of a mask."""
    count = mask.bit_count()
    if count == 1:
        column[mask.bit_length() - 1] = value
    elif count == len(column):
        column[:] = [value] * count
    else:
        for slot in slots_in(mask):
            column[slot] = value
