"""Demand: what arrives now, told apart from chance."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.planner import Observation, TrafficSeen
from dynamo.planner.demand import demand_of, rising_to


def seen(*counts: float | None) -> list[Observation]:
    """Observations of `counts` requests, of five seconds each; None is missing data."""
    return [
        Observation(at=5.0 * at, seconds=5.0, traffic=None if count is None else TrafficSeen(requests=count))
        for at, count in enumerate(counts)
    ]


def test_what_chance_explains_is_one_mean() -> None:
    rng = random.Random(1)
    counts = [float(sum(rng.random() < 0.02 for _ in range(1000))) for _ in range(24)]
    demand = demand_of(seen(*counts), 24)
    assert demand.observations == 24
    assert demand.rate == pytest.approx(sum(counts) / 120)


@pytest.mark.parametrize(("before", "after"), [(5.0, 20.0), (20.0, 5.0), (0.0, 10.0)])
def test_a_burst_that_begins_or_ends_is_seen_without_what_was_before(before: float, after: float) -> None:
    demand = demand_of(seen(*[before] * 20, *[after] * 4), 24)
    assert (demand.rate, demand.observations) == (after / 5, 4)


def test_what_follows_a_burst_is_not_mixed_with_it_or_with_what_was_before() -> None:
    demand = demand_of(seen(*[4.0] * 8, *[30.0] * 8, *[8.0] * 8), 24)
    assert (demand.rate, demand.observations) == (1.6, 8)


def test_missing_data_is_passed_over() -> None:
    assert demand_of(seen(10.0, None, 10.0), 24).rate == 2.0
    assert demand_of(seen(None), 24).observations == 0


def test_a_steady_rise_leads_above_the_newest_rate_and_chance_leads_nowhere() -> None:
    rising = seen(*(50.0 + 3 * at for at in range(32)))
    assert 143 / 5 < rising_to(rising, 6.0) < (143 + 6 * 3) / 5
    assert rising_to(seen(*(50.0 + at % 3 for at in range(32))), 6.0) == 0.0
    assert rising_to(seen(*(150.0 - 3 * at for at in range(32))), 6.0) == 0.0
    assert rising_to(seen(5.0), 6.0) == 0.0


@given(st.lists(st.none() | st.floats(0, 1e6), max_size=30))
def test_the_rate_lies_between_the_lowest_and_the_highest(counts: list[float | None]) -> None:
    demand = demand_of(seen(*counts), 24)
    known = [count for count in counts[-24:] if count is not None]
    assert demand == demand_of(seen(*counts), 24)
    if known:
        assert min(known) / 5 * (1 - 1e-9) <= demand.rate <= max(known) / 5 * (1 + 1e-9)
