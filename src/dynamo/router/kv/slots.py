"""Workers numbered densely, so that a set of workers is the bits of one int."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import compress
from typing import NamedTuple

_BITS = bytes(int(char == ord("1")) for char in range(256))


class Worker(NamedTuple):
    """One data-parallel rank of one worker: what a request is sent to."""

    worker_id: int
    dp_rank: int = 0


class Slots:
    """Gives each worker the lowest free number, so the bitmask stays as wide as there are workers."""

    def __init__(self) -> None:
        self.workers: list[Worker | None] = []
        self._slot: dict[Worker, int] = {}
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._slot)

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._slot)

    def get(self, worker: Worker) -> int | None:
        return self._slot.get(worker)

    def take(self, worker: Worker) -> int:
        """The worker's number, a new one if it has none."""
        slot = self._slot.get(worker)
        if slot is None:
            if self._free:
                slot = heapq.heappop(self._free)
                self.workers[slot] = worker
            else:
                slot = len(self.workers)
                self.workers.append(worker)
            self._slot[worker] = slot
        return slot

    def release(self, worker: Worker) -> int | None:
        slot = self._slot.pop(worker, None)
        if slot is not None:
            self.workers[slot] = None
            heapq.heappush(self._free, slot)
        return slot

    def of(self, mask: int) -> list[Worker]:
        """The workers whose bits are set."""
        return [worker for worker in compress(self.workers, bits(mask)) if worker is not None]


def bits(mask: int) -> bytes:
    """One byte per bit, lowest first: a selector for itertools.compress."""
    return f"{mask:b}"[::-1].encode().translate(_BITS)


def prefix_runs(holders: dict[int, int], chain: Sequence[int], alive: int) -> list[tuple[int, int]]:
    """Split the workers in `alive` by how many leading blocks of `chain` they hold: [(depth, mask)], depth > 0.

    Needs the prefix property: whoever holds block i holds all before it. Then the mask only shrinks along the chain,
    and the point where it next changes is found by doubling steps and halving back.
    """
    runs: list[tuple[int, int]] = []
    end = len(chain)
    at = 0
    get = holders.get
    mask = alive & get(chain[0], 0) if end else 0
    while mask:
        # Invariant: all of `mask` hold block `at`. Most often all hold the last block too.
        low, step = at, 1
        high = end
        while low + step < end:
            if get(chain[low + step], 0) & mask != mask:
                high = low + step
                break
            low += step
            step *= 2
        else:
            if low < end - 1 and get(chain[end - 1], 0) & mask == mask:
                low = end - 1
        while high - low > 1:
            middle = (low + high) // 2
            if get(chain[middle], 0) & mask == mask:
                low = middle
            else:
                high = middle
        rest = get(chain[high], 0) & mask if high < end else 0
        runs.append((high, mask & ~rest))
        mask, at = rest, high
    return runs
