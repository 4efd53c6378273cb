"""An index learned from our own decisions, for workers that publish no events: what we sent there is assumed cached."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice

from dynamo.router.kv.overlaps import Overlaps
from dynamo.router.kv.search import prefix_depths
from dynamo.router.kv.slots import Slots, Worker


class ApproximateIndex:
    """Forgets a block `ttl` seconds after a worker was last sent it, and the oldest ones beyond `max_blocks`.

    Both keep the prefix property: a chain is touched from its end to its start, so a block never outlives its parent.
    """

    def __init__(self, *, ttl: float = 120.0, max_blocks: int = 1 << 20, prune_to: float = 0.8) -> None:
        self._ttl = ttl
        self._max_blocks = max_blocks
        self._prune_to = int(max_blocks * prune_to)
        self._slots = Slots()
        self._holders: dict[int, int] = {}
        self._touched: OrderedDict[tuple[int, int], float] = OrderedDict()
        """(slot, block) by time of last touch, oldest first."""

    def __len__(self) -> int:
        """Blocks remembered, counted once per worker."""
        return len(self._touched)

    @property
    def workers(self) -> list[Worker]:
        return list(self._slots)

    def record(self, worker: Worker, chain: Sequence[int], now: float) -> None:
        """A prompt with these sequence hashes goes to this worker."""
        self.expire(now)
        slot = self._slots.take(worker)
        bit, holders, touched = 1 << slot, self._holders, self._touched
        for block in reversed(chain):
            key = (slot, block)
            touched[key] = now
            touched.move_to_end(key)
            holders[block] = holders.get(block, 0) | bit
        if len(touched) > self._max_blocks:
            self._forget_oldest(len(touched) - self._prune_to)

    def match(self, chain: Sequence[int], now: float) -> Overlaps:
        self.expire(now)
        alive = self._holders.get(chain[0], 0) if chain else 0
        workers = self._slots.workers
        return Overlaps(workers, prefix_depths(self._holders, chain, alive, len(workers)))

    def expire(self, now: float) -> None:
        old = 0
        for at in self._touched.values():
            if now - at < self._ttl:
                break
            old += 1
        self._forget_oldest(old)

    def remove_worker(self, worker: Worker) -> None:
        slot = self._slots.release(worker)
        if slot is not None:
            for key in [key for key in self._touched if key[0] == slot]:
                self._forget(key)

    def _forget_oldest(self, count: int) -> None:
        for key in list(islice(self._touched, count)):
            self._forget(key)

    def _forget(self, key: tuple[int, int]) -> None:
        slot, block = key
        del self._touched[key]
        mask = self._holders[block] & ~(1 << slot)
        if mask:
            self._holders[block] = mask
        else:
            del self._holders[block]
