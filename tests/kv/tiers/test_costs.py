from __future__ import annotations

from dynamo.kv.prompt_cost import Pace
from dynamo.kv.tiers import TierCosts


def computing_at(seconds_per_token: float) -> Pace:
    prefill = Pace()
    prefill.add(1000, 1000 * seconds_per_token)
    return prefill


def test_a_tier_that_is_slower_than_computing_is_not_used_but_tried_again_later() -> None:
    prefill, costs = computing_at(0.001), TierCosts()
    assert costs.worthwhile(prefill)
    costs.restored(256, 1000, 1.0, prefill, now=100.0)
    assert not costs.worthwhile(prefill)
    assert not costs.may_store(prefill)
    assert costs.weight(prefill) == 0
    assert not costs.take_trial(prefill, 101.0)
    assert costs.take_trial(prefill, 161.0)
    assert not costs.take_trial(prefill, 162.0)


def test_a_tier_that_has_become_fast_is_used_again() -> None:
    prefill, costs = computing_at(0.001), TierCosts()
    costs.restored(256, 1000, 0.3, prefill, now=0.0)
    assert not costs.worthwhile(prefill)
    for _ in range(20):
        costs.measured(256, 0.001, prefill, now=100.0)
    assert costs.worthwhile(prefill)


def test_the_weight_is_the_share_of_the_time_that_is_saved() -> None:
    prefill, costs = computing_at(0.01), TierCosts()
    assert costs.weight(prefill) is None
    costs.restored(100, 1000, 0.25, prefill, now=0.0)
    assert costs.weight(prefill) == 0.75


def test_storing_stops_when_it_has_cost_more_than_it_saved_and_a_small_share_of_computing() -> None:
    prefill, costs = computing_at(0.001), TierCosts()
    costs.stored(256, 1000, 0.9)
    assert costs.may_store(prefill)
    costs.stored(256, 1000, 0.5)
    assert not costs.may_store(prefill)
    prefill.add(100_000, 100.0)
    assert costs.may_store(prefill)


def test_what_was_restored_is_counted_with_what_it_saved() -> None:
    prefill, costs = computing_at(0.001), TierCosts()
    costs.restored(512, 4096, 0.01, prefill, now=0.0)
    assert (costs.restored_tokens, costs.restored_bytes, costs.saved_seconds) == (512, 4096, 0.512)
