"""The workers to choose from: the ranks of all instances and their capacities, as columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from dynamo.kv.messages import WorkerRank
from dynamo.protocols.errors import InvalidArgument

_FLEETS_KEPT = 16
"""Fleets kept, by set of instances: the same few sets are asked for again and again."""


class Capacity(Struct, frozen=True, kw_only=True):
    """A worker's size according to its card; None where the card does not say."""

    total_blocks: int | None = None
    max_batched_tokens: int | None = None
    max_requests: int | None = None


class Fleet:
    """Candidates and their sizes as columns, built when the workers change and not for each request."""

    def __init__(self, capacities: Mapping[WorkerRank, Capacity], block_size: int) -> None:
        if block_size < 1:
            raise InvalidArgument(f"block size must be at least 1, not {block_size}")
        self.block_size = block_size
        self.workers = list(capacities)
        # Without sizes in the card: 256k tokens of cache and batches of 8k.
        self.total_blocks = [size.total_blocks or max(1, (1 << 18) // block_size) for size in capacities.values()]
        self.batch_tokens = [size.max_batched_tokens or 8192 for size in capacities.values()]
        self.max_requests = [size.max_requests for size in capacities.values()]
        self._crowding: tuple[float, list[float]] = (0.0, [0.0] * len(self.workers))
        self._at: dict[WorkerRank, int] | None = None
        self._slots: tuple[Sequence[WorkerRank | None] | None, list[int] | None] = (None, None)
        self.smallest_batch = min(self.batch_tokens, default=0)
        self.smallest_cache = min(self.total_blocks, default=0)

    def crowding(self, full: float) -> list[float]:
        """The cost of one block in use at each worker, where all its blocks in use cost `full`."""
        if self._crowding[0] != full:
            self._crowding = (full, [full / total for total in self.total_blocks])
        return self._crowding[1]

    def at(self, worker: WorkerRank) -> int | None:
        """The place of a worker among the candidates; None if it is not one."""
        if self._at is None:
            self._at = {each: at for at, each in enumerate(self.workers)}
        return self._at.get(worker)

    def slots(self, workers: Sequence[WorkerRank | None]) -> list[int] | None:
        """The slot of each candidate in `workers`, -1 if it has none; None if both are in the same order."""
        if self._slots[0] is not workers:
            slot_of = {worker: slot for slot, worker in enumerate(workers)}
            same = list(workers) == self.workers
            self._slots = (workers, None if same else [slot_of.get(worker, -1) for worker in self.workers])
        return self._slots[1]


class RankTable:
    """The data-parallel ranks of one model's instances, and the fleets made of them."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._ranks: dict[int, dict[WorkerRank, Capacity]] = {}
        self._fleets: dict[tuple[int, ...], Fleet] = {}
        self._last_asked: tuple[Sequence[int], Fleet] = ((), Fleet({}, block_size))

    @property
    def workers(self) -> list[WorkerRank]:
        return [worker for ranks in self._ranks.values() for worker in ranks]

    def ranks(self, instance_id: int) -> int:
        return len(self._ranks[instance_id])

    def explicit_rank(self, worker: WorkerRank) -> int | None:
        """The rank a request to this worker must name; None if the worker has only one."""
        return worker.dp_rank if self.ranks(worker.worker_id) > 1 else None

    def put(self, instance_id: int, ranks: int, capacity: Capacity) -> list[WorkerRank]:
        """Add or replace an instance; returns its ranks."""
        self.drop(instance_id)
        self._ranks[instance_id] = {WorkerRank(instance_id, rank): capacity for rank in range(ranks)}
        return list(self._ranks[instance_id])

    def drop(self, instance_id: int) -> list[WorkerRank]:
        """Remove an instance; returns the ranks it had."""
        self._fleets.clear()
        self._last_asked = ((), Fleet({}, self._block_size))
        return list(self._ranks.pop(instance_id, {}))

    def fleet(self, ids: Sequence[int]) -> Fleet:
        """All ranks of these instances. The sequence must not be modified afterwards."""
        if ids is self._last_asked[0]:
            return self._last_asked[1]
        key = tuple(ids)
        fleet = self._fleets.get(key)
        if fleet is None:
            if len(self._fleets) >= _FLEETS_KEPT:
                self._fleets.clear()
            ranks = [rank for id in ids for rank in self._ranks.get(id, {}).items()]
            fleet = self._fleets[key] = Fleet(dict(ranks), self._block_size)
        self._last_asked = (ids, fleet)
        return fleet

    def only(self, workers: Iterable[WorkerRank]) -> Fleet:
        return Fleet({worker: self._ranks[worker.worker_id][worker] for worker in workers}, self._block_size)
