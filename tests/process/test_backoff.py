"""The growing pauses of whatever tries again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dynamo.process.backoff import Backoff, LimitedBackoff


@given(st.floats(0.001, 10), st.floats(1, 100), st.floats(1, 4), st.integers(1, 80))
def test_each_pause_is_the_factor_times_the_one_before_up_to_the_longest(
    first: float, more: float, factor: float, count: int
) -> None:
    longest = first * more
    backoff, expected = Backoff(first, longest, factor=factor), first
    for attempt in range(count):
        assert (backoff.attempts, backoff.next) == (attempt, expected)
        assert backoff.pause() == expected
        expected = min(factor * expected, longest)
    backoff.reset()
    assert (backoff.attempts, backoff.pause()) == (0, first)


def test_jitter_shortens_a_pause_to_half_at_most_and_not_those_that_follow() -> None:
    draws = iter((0.0, 1.0, 0.5))
    backoff = Backoff(1.0, 30.0, jitter=lambda: next(draws))
    assert [backoff.pause() for _ in range(3)] == [0.5, 2.0, 3.0]


def test_a_limited_back_off_ends_at_its_limit() -> None:
    now = 10.0
    backoff = LimitedBackoff(Backoff(2.0, 30.0), 5.0, lambda: now)
    assert backoff.pause() == 2.0
    now = 12.0
    assert backoff.pause() == 3.0
    now = 15.0
    assert backoff.pause() is None
