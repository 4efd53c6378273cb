"""The bound of the virtual token counter: how far apart the service of two tenants that both wait may be."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from dynamo.protocols.engine import Tenant
from dynamo.router.choice.service import CACHED, OUTPUT, PROMPT, ServiceLedger, most_requests, prompt_cost
from dynamo.router.choice.turns import Turns

LONGEST = 40
"""Tokens of a prompt, at most."""
BATCH = 100
"""Tokens that the worker's batch holds."""


class Request(Struct, eq=False):
    tenant: Tenant
    order: tuple[float, ...]
    prompt: int
    cached: int
    output: int
    cached_tokens: int = 0
    """As the ledger knows it."""

    @property
    def cost(self) -> float:
        return prompt_cost(self.prompt - self.cached_tokens, self.cached_tokens)


class Running(Struct, eq=False):
    request: Request
    output_tokens: int = 0
    cached_tokens: int | None = None


class Worker:
    """Continuous batching: each step takes in what has room, and gives every running request one token."""

    def __init__(self, names: str, seed: int) -> None:
        self.rng = random.Random(seed)
        self.turns: Turns[Request] = Turns()
        self.now = 0.0
        self.ledger = ServiceLedger(self.turns, lambda: self.now)
        self.tenants = {name: Tenant(name) for name in names}
        self.running: list[Running] = []
        self.service = dict.fromkeys(names, 0.0)
        self.waiting = dict.fromkeys(names, 0)
        self.arrivals = itertools.count()
        self.longest = {name: self.rng.choice((2, 10, 60)) for name in names}
        """Its answers, at most."""
        self.rate = {name: self.rng.choice((0.05, 0.3, 2.0)) for name in names}
        """How many requests it sends in a step."""

    def arrive(self) -> None:
        for name, tenant in self.tenants.items():
            if self.rng.random() < 0.02:
                self.rate[name] = self.rng.choice((0.0, 0.05, 0.3, 2.0))
            count = int(self.rate[name]) + (self.rng.random() < self.rate[name] % 1)
            for at in itertools.islice(self.arrivals, count):
                prompt, output = self.rng.randint(1, LONGEST), self.rng.randint(1, self.longest[name])
                cached = self.rng.randint(0, prompt)
                # The router believes what is cached; the worker tells at the end.
                request = Request(tenant, (float(at),), prompt, cached, output, self.rng.choice((cached, 0)))
                self.turns.add(request)
                self.waiting[name] += 1

    def step(self) -> None:
        self.now += 1.0
        self.ledger.settle()
        for request in self.turns:
            held = sum(one.request.prompt + one.request.output for one in self.running)
            if held + request.prompt + request.output > BATCH:
                break
            self.turns.served(request)
            self.waiting[request.tenant.name] -= 1
            self.service[request.tenant.name] += request.cost
            self.running.append(Running(request))
            self.ledger.began(self.running[-1], request)
        for one in tuple(self.running):
            one.output_tokens += 1
            self.service[one.request.tenant.name] += OUTPUT
            if one.output_tokens == one.request.output:
                one.cached_tokens = one.request.cached_tokens
                self.running.remove(one)
                self.ledger.ended(one)


def largest_gap(seed: int, steps: int, names: str = "abc") -> float:
    """Of the service of two tenants, over any interval in which both had requests waiting all the time."""
    worker = Worker(names, seed)
    gap = 0.0
    lowest: dict[tuple[str, str], float] = {}
    highest: dict[tuple[str, str], float] = {}
    for _ in range(steps):
        worker.arrive()
        worker.step()
        for pair in itertools.combinations(names, 2):
            if not all(worker.waiting[name] for name in pair):
                lowest.pop(pair, None)
                highest.pop(pair, None)
                continue
            difference = worker.service[pair[0]] - worker.service[pair[1]]
            lowest[pair] = min(lowest.get(pair, difference), difference)
            highest[pair] = max(highest.get(pair, difference), difference)
            gap = max(gap, highest[pair] - lowest[pair])
    return gap


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32))
def test_two_tenants_that_both_wait_are_served_alike_within_the_bound(seed: int) -> None:
    assert largest_gap(seed, 150) <= 2 * max(PROMPT * LONGEST, OUTPUT * BATCH)


def test_what_was_cached_after_all_is_given_back() -> None:
    turns: Turns[Request] = Turns()
    ledger = ServiceLedger(turns)
    tenant = Tenant("a")
    request = Request(tenant, (0.0,), prompt=100, cached=80, output=3)
    turns.passed(tenant, request.cost)
    running = Running(request)
    ledger.began(running, request)
    assert turns.counter(tenant) == 100 * PROMPT
    running.output_tokens, running.cached_tokens = 3, 80
    ledger.ended(running)
    assert turns.counter(tenant) == pytest.approx(20 * PROMPT + 80 * CACHED + 3 * OUTPUT)
    assert not ledger.running(tenant)


def test_output_is_charged_while_it_comes() -> None:
    now = 0.0
    turns: Turns[Request] = Turns()
    ledger = ServiceLedger(turns, lambda: now)
    tenant = Tenant("a")
    request = Request(tenant, (0.0,), prompt=10, cached=0, output=50)
    turns.passed(tenant, request.cost)
    running = Running(request, output_tokens=7)
    running.output_tokens = 0
    ledger.began(running, request)
    for count in (20, 50):
        now += 1
        running.output_tokens = count
        ledger.settle()
        assert turns.counter(tenant) == 10 * PROMPT + count * OUTPUT
    ledger.ended(running)
    assert turns.counter(tenant) == 10 * PROMPT + 50 * OUTPUT


def test_batches_are_served_after_all_who_wait_for_their_answer() -> None:
    turns: Turns[Request] = Turns()
    batch = Request(Tenant("a", background=True), (0.0,), 1, 0, 1)
    mine, yours = (Request(Tenant(name), (float(at),), 1, 0, 1) for at, name in enumerate("ab", 1))
    for request in (batch, mine, yours):
        turns.add(request)
    turns.passed(Tenant("a"), 1000.0)
    turns.passed(Tenant("b"), 1000.0)
    assert list(turns)[-1] is batch


@pytest.mark.parametrize("most", [1, 2, 4, 32, 256])
def test_a_tenant_with_nothing_under_way_finds_a_place_that_batches_and_floods_leave(most: int) -> None:
    light, batch = Tenant("light"), Tenant("flood", background=True)
    assert 1 <= most_requests(most, batch, 5) <= most_requests(most, light, 5) <= most_requests(most, light, 0) == most
    if most > 1:
        assert most_requests(most, batch, 0) < most
