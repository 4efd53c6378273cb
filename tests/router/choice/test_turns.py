"""Whose turn it is among tenants."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from dynamo.protocols.engine import Tenant
from dynamo.router.choice.turns import Turns


class One(Struct, eq=False):
    tenant: Tenant
    order: tuple[float, ...]
    cost: float


def line(tenant: Tenant, costs: list[float]) -> list[One]:
    return [One(tenant, (0.0, float(at)), cost) for at, cost in enumerate(costs)]


def filled(*lines: list[One]) -> Turns[One]:
    turns: Turns[One] = Turns()
    for waiting in lines:
        for one in waiting:
            turns.add(one)
    return turns


def serve(turns: Turns[One]) -> One:
    first = next(iter(turns))
    turns.served(first)
    return first


COSTS = st.lists(st.floats(1, 1000), min_size=1, max_size=40)


@given(COSTS)
def test_one_tenant_is_served_in_its_own_order(costs: list[float]) -> None:
    waiting = line(Tenant("a"), costs)
    turns = filled(waiting[::-1])
    assert list(turns) == waiting
    assert [serve(turns) for _ in costs] == waiting
    assert len(turns) == 0


@given(COSTS, st.integers(0, 40), st.floats(1, 1000))
def test_a_light_tenant_behind_a_flood_waits_for_one_request_at_most(
    flood: list[float], served: int, cost: float
) -> None:
    turns = filled(line(Tenant("flood"), flood))
    for _ in range(min(served, len(flood) - 1)):
        serve(turns)
    light = One(Tenant("light"), (0.0, 99.0), cost)
    turns.add(light)
    assert light in (serve(turns), serve(turns))


@given(COSTS, COSTS, st.floats(0.5, 8), st.floats(0.5, 8))
def test_while_both_wait_service_follows_the_weights_to_within_one_request_of_each(
    here: list[float], there: list[float], heavy: float, other: float
) -> None:
    a, b = Tenant("a", heavy), Tenant("b", other)
    turns = filled(line(a, here), line(b, there))
    got = {"a": 0.0, "b": 0.0}
    left = {"a": len(here), "b": len(there)}
    bound = max(here) / a.weight + max(there) / b.weight
    while left["a"] and left["b"]:
        one = serve(turns)
        got[one.tenant.name] += one.cost / one.tenant.weight
        left[one.tenant.name] -= 1
        assert abs(got["a"] - got["b"]) <= bound * (1 + 1e-9)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(1, 50), st.booleans()), max_size=60))
def test_the_order_shown_is_the_order_served(steps: list[tuple[str, float, bool]]) -> None:
    turns: Turns[One] = Turns()
    for at, (name, cost, is_served) in enumerate(steps):
        turns.add(One(Tenant(name), (float(at),), cost))
        if is_served:
            serve(turns)
    shown = list(turns)
    assert len(shown) == len(turns)
    assert [serve(turns) for _ in shown] == shown


@given(st.integers(1, 6), st.integers(0, 12))
def test_a_new_tenant_is_before_all_that_were_served(floods: int, more: int) -> None:
    turns = filled(*[line(Tenant(f"flood {number}"), [1.0] * 20) for number in range(floods)])
    for _ in range(floods + more):
        serve(turns)
    light = One(Tenant("light"), (0.0, 99.0), 1.0)
    turns.add(light)
    assert serve(turns) is light


def test_a_pause_saves_up_nothing() -> None:
    turns = filled(line(Tenant("busy"), [1.0] * 20))
    for _ in range(10):
        serve(turns)
    late = line(Tenant("late"), [1.0] * 10)
    for one in late:
        turns.add(one)
    names = [serve(turns).tenant.name for _ in range(10)]
    assert sorted(names) == ["busy"] * 5 + ["late"] * 5


def test_in_a_full_queue_the_tenant_with_most_for_its_weight_gives_way() -> None:
    flood = line(Tenant("flood"), [1.0] * 5)
    turns = filled(flood, line(Tenant("heavy", 10.0), [1.0] * 9))
    assert turns.excess(Tenant("light")) is flood[-1]
    assert turns.excess(Tenant("flood")) is None


def test_what_leaves_unserved_costs_its_tenant_nothing() -> None:
    a = line(Tenant("a"), [100.0, 1.0])
    turns = filled(a, line(Tenant("b"), [1.0]))
    turns.remove(a[0])
    turns.remove(a[0])
    assert len(turns) == 2
    assert serve(turns) is a[1]
