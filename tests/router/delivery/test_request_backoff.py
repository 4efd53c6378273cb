"""The pauses of a request that waits for an instance."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dynamo.router.config import LONGEST_PAUSE_SECONDS, RequestBackoff


@given(st.floats(0, 100), st.floats(0.001, 2), st.lists(st.floats(0, 1), min_size=200, max_size=200))
def test_pauses_grow_to_the_longest_and_end_exactly_at_the_limit(
    limit: float, first: float, draws: list[float]
) -> None:
    now, draw = 0.0, iter(draws)
    backoff = RequestBackoff(limit, first=first, clock=lambda: now, jitter=lambda: next(draw))
    expected = first
    while (pause := backoff.pause()) is not None:
        left = limit - now
        assert min(expected / 2, left) <= pause <= min(expected, left)
        expected = min(2 * expected, LONGEST_PAUSE_SECONDS)
        now += pause
        if now >= limit:
            break
    assert backoff.pause() is None or now < limit


def test_the_limit_counts_from_the_first_pause() -> None:
    now = 50.0
    backoff = RequestBackoff(1.0, clock=lambda: now, jitter=lambda: 1.0)
    now = 70.0
    assert backoff.pause() == 0.1
    now = 71.0
    assert backoff.pause() is None
