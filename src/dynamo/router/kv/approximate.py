"""An index learned from our own decisions, for workers that publish no events: what we sent there is assumed cached."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from dynamo.router.kv.overlaps import Overlaps
from dynamo.router.kv.slots import Slots, Worker
from dynamo.router.kv.used import Stretch, UsedBlocks


class ApproximateIndex:
    """Forgets a block `ttl` seconds after a worker was last sent it, and the oldest prompts beyond `max_blocks`."""

    def __init__(self, *, ttl: float = 120.0, max_blocks: int = 1 << 20, prune_to: float = 0.8) -> None:
        self._ttl = ttl
        self._max_blocks = max_blocks
        self._prune_to = int(max_blocks * prune_to)
        self._slots = Slots()
        self._blocks = UsedBlocks()
        self._sent: deque[tuple[float, int, Stretch]] = deque()
        """When, to which slot and the end of the chain, oldest first."""
        self._size = 0

    def __len__(self) -> int:
        """Blocks remembered, counted once per worker."""
        return self._size

    @property
    def workers(self) -> list[Worker]:
        return list(self._slots)

    def record(self, worker: Worker, chain: Sequence[int], now: float) -> None:
        """A prompt with these sequence hashes goes to this worker."""
        self.expire(now)
        slot = self._slots.take(worker)
        end, fresh = self._blocks.add(slot, chain)
        self._sent.append((now, slot, end))
        self._size += fresh
        if self._size > self._max_blocks:
            while self._size > self._prune_to and len(self._sent) > 1:
                self._forget_oldest()

    def match(self, chain: Sequence[int], now: float) -> Overlaps:
        self.expire(now)
        workers = self._slots.workers
        return Overlaps(workers, self._blocks.shared(chain, len(workers)))

    def expire(self, now: float) -> None:
        while self._sent and now - self._sent[0][0] >= self._ttl:
            self._forget_oldest()

    def remove_worker(self, worker: Worker) -> None:
        slot = self._slots.release(worker)
        if slot is not None:
            self._size -= sum([self._blocks.remove(slot, end) for _, at, end in self._sent if at == slot])
            self._sent = deque([sent for sent in self._sent if sent[1] != slot])

    def _forget_oldest(self) -> None:
        _, slot, end = self._sent.popleft()
        self._size -= self._blocks.remove(slot, end)
