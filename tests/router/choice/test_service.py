"""The bound of the virtual token counter: how far apart the service of two tenants that both wait may be."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from dynamo.protocols.engine import Tenant
from dynamo.router.choice.elsewhere import ServiceElsewhere
from dynamo.router.choice.service import (
    CACHED,
    OUTPUT,
    PROMPT,
    ServiceLedger,
    TenantsUnderWay,
    most_requests,
    prompt_cost,
)
from dynamo.router.choice.turns import Turns, tenant_key

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


class Frontend:
    """The fair part of one router."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.turns: Turns[Request] = Turns()
        self.ledger = ServiceLedger(self.turns, clock)
        self.elsewhere = ServiceElsewhere(self.turns, clock)

    def heads(self) -> Iterator[Request]:
        self.ledger.settle()
        self.elsewhere.expire()
        for request in self.turns:
            if self.turns.is_ahead(tenant_key(request.tenant)):
                return
            yield request


class Chances:
    """Few calls of few kinds: a million histories are drawn from it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed).random

    def upto(self, most: int) -> int:
        """0 to `most - 1`."""
        return int(self.random() * most)

    def shuffled(self, frontends: list[Frontend]) -> list[Frontend]:
        left, found = list(frontends), list[Frontend]()
        while left:
            found.append(left.pop(self.upto(len(left))))
        return found


class Worker:
    """Continuous batching: each step takes in what has room, and gives every running request one token.

    Several frontends send to it, in a random order. They tell each other every `exchange` steps.
    """

    def __init__(self, names: str, seed: int, frontends: int = 1, exchange: int = 3) -> None:
        self.chances = Chances(seed)
        upto = self.chances.upto
        self.now = 0.0
        self.exchange = exchange
        self.frontends = [Frontend(lambda: self.now) for _ in range(frontends)]
        self.tenants = {name: Tenant(name) for name in names}
        self.running: list[tuple[Running, Frontend]] = []
        self.service = dict.fromkeys(names, 0.0)
        self.waiting = dict.fromkeys(names, 0)
        self.arrivals = 0
        self.steps = 0
        self.longest = {name: (2, 10, 60)[upto(3)] for name in names}
        """Its answers, at most."""
        self.rate = {name: (0.05, 0.3, 2.0)[upto(3)] for name in names}
        """How many requests it sends in a step."""
        self.used = {name: self.chances.shuffled(self.frontends)[: 1 + upto(frontends)] for name in names}
        """The frontends that it asks."""

    def arrive(self) -> None:
        chance, upto = self.chances.random, self.chances.upto
        for name, tenant in self.tenants.items():
            if chance() < 0.02:
                self.rate[name] = (0.0, 0.05, 0.3, 2.0)[upto(4)]
            for _ in range(int(self.rate[name]) + (chance() < self.rate[name] % 1)):
                prompt, output = 1 + upto(LONGEST), 1 + upto(self.longest[name])
                cached = upto(prompt + 1)
                # The router believes what is cached; the worker tells at the end.
                believed = cached if upto(2) else 0
                self.arrivals += 1
                request = Request(tenant, (float(self.arrivals),), prompt, cached, output, believed)
                self.used[name][upto(len(self.used[name]))].turns.add(request)
                self.waiting[name] += 1

    def step(self) -> None:
        self.now += 0.06
        self.steps += 1
        if self.steps % self.exchange == 0:
            for sender in self.frontends:
                report = sender.elsewhere.report()
                for receiver in self.frontends:
                    if receiver is not sender:
                        receiver.elsewhere.learn(id(sender), report)
        for frontend in self.chances.shuffled(self.frontends):
            for request in frontend.heads():
                held = sum(one.request.prompt + one.request.output for one, _ in self.running)
                if held + request.prompt + request.output > BATCH:
                    break
                frontend.turns.served(request)
                self.waiting[request.tenant.name] -= 1
                self.service[request.tenant.name] += request.cost
                self.running.append((Running(request), frontend))
                frontend.ledger.began(self.running[-1][0], request)
        for one, frontend in tuple(self.running):
            one.output_tokens += 1
            self.service[one.request.tenant.name] += OUTPUT
            if one.output_tokens == one.request.output:
                one.cached_tokens = one.request.cached_tokens
                self.running.remove((one, frontend))
                frontend.ledger.ended(one)


def largest_gap(worker: Worker, steps: int) -> tuple[float, float]:
    """The largest gap between two tenants, over any interval in which both had requests waiting all the time.

    And the most that all were served between two messages of the frontends.
    """
    gap, most, window = 0.0, 0.0, worker.exchange + 1
    lowest: dict[tuple[str, str], float] = {}
    highest: dict[tuple[str, str], float] = {}
    totals = [0.0]
    for _ in range(steps):
        worker.arrive()
        worker.step()
        totals.append(sum(worker.service.values()))
        most = max(most, totals[-1] - totals[max(0, len(totals) - 1 - window)])
        for pair in itertools.combinations(worker.tenants, 2):
            if not all(worker.waiting[name] for name in pair):
                lowest.pop(pair, None)
                highest.pop(pair, None)
                continue
            difference = worker.service[pair[0]] - worker.service[pair[1]]
            lowest[pair] = min(lowest.get(pair, difference), difference)
            highest[pair] = max(highest.get(pair, difference), difference)
            gap = max(gap, highest[pair] - lowest[pair])
    return gap, most


BOUND = 2 * max(PROMPT * LONGEST, OUTPUT * BATCH)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32))
def test_two_tenants_that_both_wait_are_served_alike_within_the_bound(seed: int) -> None:
    gap, _ = largest_gap(Worker("abc", seed), 150)
    assert gap <= BOUND


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 4))
def test_with_several_frontends_the_bound_grows_by_what_is_served_between_two_messages(seed: int, count: int) -> None:
    gap, most = largest_gap(Worker("abc", seed, count), 150)
    assert gap <= BOUND + most


def test_frontends_that_do_not_tell_each_other_exceed_the_bound() -> None:
    """Else the test above could not fail."""
    gaps = [largest_gap(Worker("abc", seed, 3, exchange=10**9), 400)[0] for seed in range(40)]
    assert max(gaps) > 2 * BOUND


def test_what_was_cached_after_all_is_given_back() -> None:
    turns: Turns[Request] = Turns()
    ledger = ServiceLedger(turns)
    tenant = Tenant("a")
    request = Request(tenant, (0.0,), prompt=100, cached=80, output=3)
    turns.passed(tenant, request.cost)
    running = Running(request)
    ledger.began(running, request)
    assert turns.counter(tenant_key(tenant)) == 100 * PROMPT
    running.output_tokens, running.cached_tokens = 3, 80
    ledger.ended(running)
    assert turns.counter(tenant_key(tenant)) == pytest.approx(20 * PROMPT + 80 * CACHED + 3 * OUTPUT)
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
        assert turns.counter(tenant_key(tenant)) == 10 * PROMPT + count * OUTPUT
    ledger.ended(running)
    assert turns.counter(tenant_key(tenant)) == 10 * PROMPT + 50 * OUTPUT


def test_batches_are_served_after_all_who_wait_for_their_answer() -> None:
    turns: Turns[Request] = Turns()
    batch = Request(Tenant("a", background=True), (0.0,), 1, 0, 1)
    mine, yours = (Request(Tenant(name), (float(at),), 1, 0, 1) for at, name in enumerate("ab", 1))
    for request in (batch, mine, yours):
        turns.add(request)
    turns.passed(Tenant("a"), 1000.0)
    turns.passed(Tenant("b"), 1000.0)
    assert list(turns)[-1] is batch


@pytest.mark.parametrize("most", [1, 2, 4, 8, 32, 256])
def test_an_absent_tenant_finds_a_place_that_batches_and_floods_leave(most: int) -> None:
    light, batch = Tenant("light"), Tenant("flood", background=True)
    flooding, comes = TenantsUnderWay(own=most, active=1, absent=1), TenantsUnderWay(active=1, absent=1)
    floods = most_requests(most, light, flooding)
    assert 1 <= most_requests(most, batch, flooding) <= floods <= most_requests(most, light, comes) == most
    if most >= 8:
        assert floods < most
    if most > 1:
        assert most_requests(most, batch, TenantsUnderWay()) < most


@pytest.mark.parametrize("most", [1, 8, 16, 24, 256])
def test_no_place_is_kept_while_every_tenant_has_requests_under_way_or_waiting(most: int) -> None:
    assert most_requests(most, Tenant("flood"), TenantsUnderWay(own=most, active=2, absent=0)) == most


def test_who_has_far_less_than_an_equal_share_of_the_places_may_use_those_that_are_kept() -> None:
    def most(own: int) -> int:
        return most_requests(24, Tenant("one of ten"), TenantsUnderWay(own=own, active=10, absent=17))

    assert (most(1), most(2)) == (24, 23)


def test_a_tenant_is_absent_that_has_requests_neither_under_way_nor_waiting() -> None:
    turns: Turns[Request] = Turns()
    ledger = ServiceLedger(turns)
    one, other = Tenant("a", keys=3), Tenant("b", keys=3)
    request = Request(one, (0.0,), prompt=10, cached=0, output=5)
    assert ledger.under_way(one).absent == 3
    first, second = Running(request), Running(request)
    for running in (first, second):
        ledger.began(running, request)
    assert ledger.under_way(one).absent == 2
    waiting = Request(other, (1.0,), prompt=10, cached=0, output=5)
    turns.add(waiting)  # needs no place that is kept: it is its turn, or that of somebody who had less
    turns.add(request)
    assert ledger.under_way(one).absent == 1
    turns.remove(waiting)
    turns.remove(request)
    ledger.ended(first)
    assert ledger.under_way(one).absent == 2
    ledger.ended(second)
    assert ledger.under_way(one).absent == 3
    assert ledger.under_way(Tenant("c")).absent == 0
