"""Simulated workers: continuous batching, chunked prefill, paged blocks with a prefix cache and LRU eviction.

Time is virtual. The timing curves are those published for the mocker, so that results can be held against runs of it.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from dynamo.protocols.kv import Removed, RouterEvent, Stored, Tier
from dynamo.router.kv.hashing import local_hashes, sequence_hashes

MAX_BATCHED_TOKENS = 8192
MAX_SEQS = 256
_private = itertools.count(1)


@dataclass
class Prompt:
    """A prompt's tokens as hashes of its complete blocks."""

    length: int
    local: list[int]
    chain: list[int]

    @staticmethod
    def of(tokens: list[int], block_size: int) -> Prompt:
        local = local_hashes(tokens, block_size)
        return Prompt(len(tokens), local, sequence_hashes(local))


@dataclass
class Running:
    name: str
    prompt: Prompt
    max_tokens: int
    on_first: Callable[[float, int], None]
    on_end: Callable[[float], None]
    computed: int = 0
    generated: int = 0
    published: int = 0
    cached: int = -1
    blocks: list[tuple[int, bool]] = field(default_factory=list)
    """(block, whether it is shared under its sequence hash)"""

    @property
    def known(self) -> int:
        return self.prompt.length + self.generated


class SimWorker:
    def __init__(
        self, number: int, total_blocks: int, block_size: int, speed: float, publish: Callable[[RouterEvent], None]
    ) -> None:
        self.number = number
        self.total_blocks = total_blocks
        self.block_size = block_size
        self.speed = speed
        self.publish = publish
        self.waiting: deque[Running] = deque()
        self.running: list[Running] = []
        self.in_use: dict[int, int] = {}
        self.idle: OrderedDict[int, None] = OrderedDict()
        self.busy = False
        self.event_id = 0
        self.tokens = 0

    def begin(self) -> tuple[float, list[Running]] | None:
        """Schedule one pass: its length in seconds and who takes part; None when there is nothing to do."""
        budget = MAX_BATCHED_TOKENS
        prefill_tokens = 0
        batch: list[Running] = []
        preempted = False
        for request in list(self.running):
            if request not in self.running:
                continue
            take = min(request.known - request.computed, budget)
            while not self._grow(request, request.computed + take):
                victim = self.running.pop()
                self._free(victim)
                victim.computed = victim.published = 0
                self.waiting.appendleft(victim)
                preempted = True
                if victim in batch:
                    batch.remove(victim)
                if victim is request:
                    break
            else:
                budget -= take
                if request.computed < request.prompt.length:
                    prefill_tokens += take
                request.computed += take
                batch.append(request)
        while not preempted and self.waiting and budget > 0 and len(self.running) < MAX_SEQS:
            request = self.waiting[0]
            hit = self._cached(request)
            shared = sum(block in self.in_use for block in request.prompt.chain[:hit])
            need = -(-request.known // self.block_size) - shared
            if need > self.total_blocks - len(self.in_use):
                break
            self.waiting.popleft()
            if request.cached < 0:
                request.cached = hit * self.block_size
            for block in request.prompt.chain[:hit]:
                self._take(block)
                request.blocks.append((block, True))
            request.computed = hit * self.block_size
            request.published = hit
            take = min(request.known - request.computed, budget)
            self._grow(request, request.computed + take)
            budget -= take
            prefill_tokens += take
            request.computed += take
            self.running.append(request)
            batch.append(request)
        if not batch:
            return None
        ms = 0.0
        if prefill_tokens:
            ms += 4.209989e-07 * prefill_tokens**2 + 1.518344e-02 * prefill_tokens + 16.50142
        # As in the mocker, a first token comes with its prompt, and blocks that requests share are read by each.
        reading = [request.known for request in batch if request.generated and request.computed == request.known]
        if reading:
            used = min(1.0, sum(reading) / (self.total_blocks * self.block_size))
            ms += max(1.0, -25.74 * used**2 + 54.01 * used + 5.74)
        return ms / 1000 / self.speed, batch

    def finish(self, now: float, batch: list[Running]) -> None:
        for request in batch:
            self._show(request)
            if request.computed < request.known:
                continue
            request.generated += 1
            if request.generated == 1:
                request.on_first(now, request.cached)
            if request.generated >= request.max_tokens:
                self.running.remove(request)
                self._free(request)
                self.tokens += request.known
                request.on_end(now)

    def _cached(self, request: Running) -> int:
        most = (request.known - 1) // self.block_size
        hit = 0
        for block in request.prompt.chain[:most]:
            if block not in self.in_use and block not in self.idle:
                break
            hit += 1
        return hit

    def _grow(self, request: Running, upto: int) -> bool:
        need = -(-upto // self.block_size) - len(request.blocks)
        if need > self.total_blocks - len(self.in_use):
            return False
        for _ in range(need):
            self._take(block := -next(_private))
            request.blocks.append((block, False))
        return True

    def _take(self, block: int) -> None:
        if block in self.in_use:
            self.in_use[block] += 1
            return
        if block in self.idle:
            del self.idle[block]
        elif len(self.in_use) + len(self.idle) >= self.total_blocks:
            evicted, _ = self.idle.popitem(last=False)
            if evicted > 0:
                self._emit(Removed([evicted]))
        self.in_use[block] = 1

    def _show(self, request: Running) -> None:
        """Full prompt blocks that are now computed become visible to others."""
        full = min(request.computed // self.block_size, len(request.prompt.chain))
        for at in range(request.published, full):
            block = request.prompt.chain[at]
            old, shared = request.blocks[at]
            if shared:
                continue
            if block not in self.in_use and block not in self.idle:
                del self.in_use[old]
                self.in_use[block] = 1
                request.blocks[at] = (block, True)
                parent = request.prompt.chain[at - 1] if at else None
                self._emit(Stored([block], [request.prompt.local[at]], parent))
        request.published = max(request.published, full)

    def _free(self, request: Running) -> None:
        full = request.computed // self.block_size
        for at, (block, _shared) in reversed(list(enumerate(request.blocks))):
            self.in_use[block] -= 1
            if not self.in_use[block]:
                del self.in_use[block]
                # Full output blocks stay cached too: nobody asks for them, but they take their place in the LRU order.
                if at < full:
                    self.idle[block] = None
        request.blocks.clear()

    def _emit(self, data: Stored | Removed) -> None:
        self.publish(RouterEvent(worker_id=self.number, event_id=self.event_id, data=data, tier=Tier.Device))
        self.event_id += 1
