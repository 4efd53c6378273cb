"""The load book: the requests at each worker that have not ended.

Blocks of active prompts are counted once per worker however many requests share them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from msgspec import Struct

from dynamo.kv.index.active_blocks import ActiveBlocks, Segment
from dynamo.kv.index.slots import Slots
from dynamo.kv.messages import WorkerRank
from dynamo.protocols.errors import InvalidArgument

_T = TypeVar("_T", int, float)


class Loads(Struct, frozen=True):
    """The load of workers as columns, in the order of the workers that were asked for.

    Counts are floats where costs are computed from them: adding floats is faster.
    """

    prefill_tokens: list[float]
    """Tokens of prompts that have no first token yet."""
    active_blocks: list[float]
    """Distinct blocks in use by running requests."""
    shared_blocks: list[int]
    """Leading blocks of the prompt that are in use there already."""
    requests: list[float]
    sent: list[float]
    """Prompt tokens sent there, later ones with a higher weight."""
    scale: float = 1.0
    """`sent * scale` is the recent traffic: a token counts 1 when it is sent, and half after each half-life."""
    pass_left: list[float] | None = None
    """How much of its current forward pass each worker still has before it, from 0 to 1, where that matters."""


class _Reservation(Struct):
    worker: WorkerRank
    slot: int
    end: Segment
    prefill_tokens: int
    extra: bool


class LoadBook:
    """`half_life` seconds is how fast traffic is forgotten."""

    def __init__(self, *, half_life: float = 60.0) -> None:
        self._slots = Slots()
        self._departed: set[WorkerRank] = set()
        """Workers that left but still have requests."""
        self._half_life = half_life
        self._reservations: dict[str, _Reservation] = {}
        self._active = ActiveBlocks()
        self._prefill: list[float] = []
        self._blocks: list[float] = []
        self._requests: list[float] = []
        self._traffic: list[float] = []
        self._epoch: float | None = None
        self._last_asked: tuple[Sequence[WorkerRank], list[int] | None] | None = None

    def __len__(self) -> int:
        return len(self._reservations)

    def add_worker(self, worker: WorkerRank) -> None:
        slot = self._slots.take(worker)
        self._departed.discard(worker)
        self._last_asked = None
        if slot == len(self._prefill):
            self._prefill.append(0.0)
            self._blocks.append(0.0)
            self._requests.append(0.0)
            self._traffic.append(0.0)

    def remove_worker(self, worker: WorkerRank) -> None:
        """Book no more requests there. Its load is kept until its last request has ended: it may come back."""
        slot = self._slots.of.get(worker)
        if slot is None:
            return
        if self._requests[slot]:
            self._departed.add(worker)
        else:
            self._forget(worker, slot)

    def reserve(
        self,
        request_id: str,
        worker: WorkerRank,
        hashes: Sequence[int],
        *,
        now: float,
        prompt_tokens: int,
        prefill_tokens: int,
        extra: bool = False,
    ) -> bool:
        """Book a request; returns False and does nothing if it is already reserved or the worker is gone.

        An `extra` request is load, but does not count among the requests that share a prefix.
        """
        slot = self._slots.of.get(worker)
        if slot is None or request_id in self._reservations or (self._departed and worker in self._departed):
            return False
        end, fresh = self._active.add(slot, hashes, extra)
        weight = self._inflation(now)
        self._reservations[request_id] = _Reservation(worker, slot, end, prefill_tokens, extra)
        self._prefill[slot] += prefill_tokens
        self._blocks[slot] += fresh
        self._requests[slot] += 1
        self._traffic[slot] += prompt_tokens * weight
        return True

    def first_token(self, request_id: str) -> bool:
        """The prompt is computed: its tokens no longer wait."""
        reservation = self._reservations.get(request_id)
        if reservation is None or not reservation.prefill_tokens:
            return False
        self._prefill[reservation.slot] -= reservation.prefill_tokens
        reservation.prefill_tokens = 0
        return True

    def free(self, request_id: str) -> bool:
        reservation = self._reservations.pop(request_id, None)
        if reservation is None:
            return False
        slot = reservation.slot
        self._prefill[slot] -= reservation.prefill_tokens
        self._blocks[slot] -= self._active.remove(slot, reservation.end, reservation.extra)
        self._requests[slot] -= 1
        if self._departed and not self._requests[slot] and reservation.worker in self._departed:
            self._forget(reservation.worker, slot)
        return True

    def shared_prefix(self, request_id: str, least: int) -> tuple[int, int]:
        """How many leading blocks of its prompt at least `least` requests share, and how many do (not extra ones)."""
        reservation = self._reservations.get(request_id)
        node = reservation.end if reservation else None
        while node is not None and node.requests - node.extra < least:
            node = node.parent
        return (node.end, node.requests - node.extra) if node is not None else (0, 0)

    def loads(
        self,
        workers: Sequence[WorkerRank],
        hashes: Sequence[int],
        now: float,
        *,
        pass_left: list[float] | None = None,
    ) -> Loads:
        """The load of these workers, as seen by a prompt with these hashes. `workers` must not be modified later."""
        shared = self._active.shared(hashes, len(self._prefill))
        at = self._slots_of(workers)
        scale = 1 / self._inflation(now)
        return Loads(
            _column(self._prefill, at),
            _column(self._blocks, at),
            _column(shared, at),
            _column(self._requests, at),
            _column(self._traffic, at),
            scale,
            pass_left,
        )

    def _forget(self, worker: WorkerRank, slot: int) -> None:
        self._departed.discard(worker)
        self._slots.release(worker)
        self._traffic[slot] = 0.0
        self._last_asked = None

    def _slots_of(self, workers: Sequence[WorkerRank]) -> list[int] | None:
        """The slot of each worker, or None if these are all slots in order; cached for the same sequence object."""
        if self._last_asked is None or self._last_asked[0] is not workers:
            at = [slot for worker in workers if (slot := self._slots.of.get(worker)) is not None]
            if len(at) != len(workers):
                unknown = next(worker for worker in workers if self._slots.of.get(worker) is None)
                raise InvalidArgument(f"worker {unknown.worker_id} rank {unknown.dp_rank} is not in the load book")
            self._last_asked = (workers, None if at == [*range(len(self._prefill))] else at)
        return self._last_asked[1]

    def _inflation(self, now: float) -> float:
        """The weight of traffic added now. It grows, which decays all earlier traffic without touching every worker."""
        if self._epoch is None or now - self._epoch > 64 * self._half_life:
            if self._epoch is not None:
                self._traffic = [traffic * 0.5 ** ((now - self._epoch) / self._half_life) for traffic in self._traffic]
            self._epoch = now
        return float(2.0 ** ((now - self._epoch) / self._half_life))


def _column(values: list[_T], at: list[int] | None) -> list[_T]:
    return values[:] if at is None else [values[slot] for slot in at]
