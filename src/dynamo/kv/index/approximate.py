"""An index of our own decisions, for workers that publish no events: what was sent to a worker is assumed cached."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from dynamo.kv.index.active_blocks import ActiveBlocks, Segment
from dynamo.kv.index.overlaps import Overlaps
from dynamo.kv.index.prefixes import PrefixScan, scan_segments
from dynamo.kv.index.slots import Slots
from dynamo.kv.messages import WorkerRank


class ApproximateIndex:
    """Forgets a block `ttl` seconds after it was last sent to a worker, and the oldest prompts beyond `max_blocks`."""

    def __init__(self, *, ttl: float = 120.0, max_blocks: int = 1 << 20, prune_to: float = 0.8) -> None:
        self._ttl = ttl
        self._max_blocks = max_blocks
        self._prune_to = int(max_blocks * prune_to)
        self._slots = Slots()
        self._blocks = ActiveBlocks()
        self._sent: OrderedDict[tuple[int, Segment], float] = OrderedDict()
        """The time of the last prompt by slot and last segment, oldest first."""
        self._size = 0

    def __len__(self) -> int:
        """Blocks remembered, counted once per worker."""
        return self._size

    def prefixes(self, most: int) -> PrefixScan:
        return scan_segments(self._blocks, self._slots.workers, most)

    def record(self, worker: WorkerRank, hashes: Sequence[int], now: float) -> None:
        """Record that a prompt with these sequence hashes goes to this worker."""
        self.expire(now)
        slot = self._slots.take(worker)
        end, fresh = self._blocks.add(slot, hashes)
        if (slot, end) in self._sent:
            self._blocks.remove(slot, end)
            self._sent.move_to_end((slot, end))
        self._sent[slot, end] = now
        self._size += fresh
        if self._size > self._max_blocks:
            while self._size > self._prune_to and len(self._sent) > 1:
                self._forget_oldest()

    def match(self, hashes: Sequence[int], now: float) -> Overlaps:
        self.expire(now)
        workers = self._slots.workers
        return Overlaps(workers, self._blocks.shared(hashes, len(workers)))

    def expire(self, now: float) -> None:
        while self._sent and now - next(iter(self._sent.values())) >= self._ttl:
            self._forget_oldest()

    def remove_worker(self, worker: WorkerRank) -> None:
        slot = self._slots.release(worker)
        if slot is not None:
            for sent in [sent for sent in self._sent if sent[0] == slot]:
                del self._sent[sent]
                self._size -= self._blocks.remove(*sent)

    def _forget_oldest(self) -> None:
        sent, _ = self._sent.popitem(last=False)
        self._size -= self._blocks.remove(*sent)
