"""The circuit breaker of an instance."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dynamo.runtime.breaker import FAILURES, FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, Breaker, BreakerState


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_failure_of_the_connection_opens_it_at_once() -> None:
    breaker = Breaker(Clock())
    assert breaker.open()
    assert not breaker.allows
    assert not breaker.open()


def test_engine_errors_open_it_only_in_a_row() -> None:
    breaker = Breaker(Clock())
    assert [breaker.error() for _ in range(FAILURES)] == [False] * (FAILURES - 1) + [True]
    assert not breaker.allows


def test_half_open_it_allows_one_request_and_its_error_opens_it_for_longer() -> None:
    breaker = Breaker(Clock())
    breaker.open()
    breaker.half_open()
    assert breaker.allows
    breaker.sent()
    assert not breaker.allows
    assert breaker.error()
    assert breaker.pause == 2 * FIRST_PAUSE_SECONDS


def test_half_open_it_allows_another_request_if_nothing_came_of_the_first() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    breaker.open()
    breaker.half_open()
    breaker.sent()
    clock.now += breaker.pause
    assert breaker.allows


@given(st.lists(st.sampled_from(["open", "error", "half_open", "sent", "probe_failed", "wait"]), max_size=40))
def test_open_it_allows_nothing_and_its_pause_stays_bounded(history: list[str]) -> None:
    clock = Clock()
    breaker = Breaker(clock)
    for step in history:
        if step == "wait":
            clock.now += 1
        elif step != "half_open" or breaker.state is BreakerState.OPEN:
            getattr(breaker, step)()
        assert breaker.allows is not (breaker.state is BreakerState.OPEN) or breaker.state is BreakerState.HALF_OPEN
        assert FIRST_PAUSE_SECONDS <= breaker.pause <= LONGEST_PAUSE_SECONDS
