from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.serving.overrides import Override, Overrides

OVERRIDES = st.lists(
    st.builds(
        Override,
        model=st.sampled_from("ab"),
        field=st.sampled_from("xy"),
        value=st.integers(0, 9),
        at=st.integers(0, 3),
        process=st.integers(0, 2),
    ),
    # One process sets one thing once at a time.
    unique_by=lambda one: (one.model, one.field, one.at, one.process),
)


@given(OVERRIDES, st.randoms())
def test_in_whatever_order_they_come_the_newest_stay(settings: list[Override], random: object) -> None:
    one, other = Overrides(1), Overrides(2)
    one.merge(settings)
    for part in random.sample(settings, len(settings)):  # type: ignore[attr-defined]
        other.merge([part, *settings[:1]])
    assert {model: one.of(model) for model in "ab"} == {model: other.of(model) for model in "ab"}
    for kept in one.all():
        same = [each for each in settings if (each.model, each.field) == (kept.model, kept.field)]
        assert kept.version == max(each.version for each in same)


def test_what_is_set_here_is_newer_than_what_was_there() -> None:
    overrides = Overrides(7)
    overrides.merge([Override("a", "x", 1, 5, 9)])
    overrides.set("a", {"x": 2, "y": 0.5})
    assert overrides.of("a") == {"x": 2, "y": 0.5}
    assert overrides.of("b") == {}


def test_a_threshold_can_be_changed_after_the_clock_was_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = Overrides(7)
    for seconds, value in ((5000, 1), (1000, 2)):
        monkeypatch.setattr(time, "time_ns", lambda now=seconds: now * 10**9)
        overrides.set("m", {"active": value})
    assert overrides.of("m") == {"active": 2}
