"""The decision scenario known from upstream, through the whole core: hashes, index, load book, choice."""

from __future__ import annotations

import random

import pytest

from dynamo.kv.hashing import prompt_hashes
from dynamo.kv.index.approximate import ApproximateIndex
from dynamo.kv.index.index import Index
from dynamo.kv.index.overlaps import Overlap, Overlaps
from dynamo.kv.messages import RouterEvent, Stored, WorkerRank
from dynamo.router.choice.choose import Choice, choose
from dynamo.router.choice.cost import CostConfig
from dynamo.router.choice.fleet import Capacity, Fleet
from dynamo.router.load_book import LoadBook

BLOCK = 16
a, b = WorkerRank(1), WorkerRank(2)


def prompt(blocks: str) -> list[int]:
    return [ord(name) * 100 + at for name in blocks for at in range(BLOCK)]


class Core:
    """A router and two engines that cache for ever."""

    def __init__(self, seed: int, *, events: bool) -> None:
        self.events = events
        self.rng = random.Random(seed)
        self.index = Index()
        self.learned = ApproximateIndex()
        self.book = LoadBook()
        self.fleet = Fleet({a: Capacity(), b: Capacity()}, BLOCK)
        self.cached: dict[WorkerRank, dict[int, None]] = {a: {}, b: {}}
        self.now = 0.0
        for worker in (a, b):
            self.book.add_worker(worker)

    def decide(self, tokens: list[int]) -> Choice:
        chain = prompt_hashes(tokens, BLOCK)
        loads = self.book.loads(self.fleet.workers, chain, self.now)
        return choose(len(tokens), len(chain), self.fleet, self.overlaps(tokens), loads, CostConfig(), self.rng)

    def overlaps(self, tokens: list[int]) -> Overlaps:
        chain = prompt_hashes(tokens, BLOCK)
        return self.index.match(chain) if self.events else self.learned.match(chain, self.now)

    def send(self, tokens: list[int], worker: WorkerRank | None = None) -> WorkerRank:
        choice = self.decide(tokens)
        chosen = worker or choice.worker
        chain = prompt_hashes(tokens, BLOCK)
        self.book.reserve("r", chosen, chain, now=self.now, prompt_tokens=len(tokens), prefill_tokens=len(tokens))
        self.learned.record(chosen, chain, self.now)
        self._serve(chosen, chain)
        self.book.first_token("r")
        self.book.free("r")
        self.now += 1
        return chosen

    def _serve(self, worker: WorkerRank, chain: list[int]) -> None:
        held = self.cached[worker]
        parent = None
        for block in chain:
            if block not in held:
                held[block] = None
                data = Stored([block], parent)
                self.index.apply(RouterEvent(worker_id=worker.worker_id, event_id=0, data=data))
            parent = block


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("events", [True, False])
def test_five_requests_over_blocks_a_to_g_go_where_their_prefix_is(seed: int, events: bool) -> None:
    core = Core(seed, events=events)
    core.send(prompt("AB"), a)
    core.send(prompt("ACD"), a)
    core.send(prompt("ACE"), b)
    assert core.send(prompt("ACDF")) == a
    assert core.send(prompt("ACEG")) == b
    assert (len(core.cached[a]), len(core.cached[b])) == (5, 4)
    assert (core.index.blocks(a), core.index.blocks(b)) == (5, 4)
    found = core.overlaps(prompt("ACDF")).by_worker()
    assert found[a].device > found[b].device


def test_a_choice_tells_why() -> None:
    core = Core(0, events=True)
    core.send(prompt("ACD"), a)
    core.send(prompt("AC"), b)
    choice = core.decide(prompt("ACDF"))
    assert choice.passed_over is None
    first, second = choice.candidates()
    assert (first.overlap, first.prefill_tokens, first.decode_blocks) == (Overlap(3), 16, 4)
    assert (second.overlap, second.prefill_tokens) == (Overlap(2), 32)
    assert first.cost < second.cost
