"""When a prompt is computed by a prefill worker: pure decisions from what is there and what was measured."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.handoff.pairing import TRANSFER, Peer, mismatch, partners
from dynamo.handoff.router.costs import STALE_SECONDS, HandoffCosts
from dynamo.handoff.router.rule import HandoffCase, decide
from dynamo.kv.prompt_cost import LineFit
from dynamo.protocols.card import CardFile, ModelCard, ModelRuntimeConfig, WorkerType
from dynamo.settings.router import HandoffConfig


def measured(now: float = 0.0) -> HandoffCosts:
    """1 ms per prompt token; 100 ms for the hop and 0.1 ms per token for the transfer."""
    costs = HandoffCosts()
    for tokens in (100, 1000, 2000):
        costs.prefill.add(tokens, tokens * 1e-3, now)
        costs.transfer.add(tokens, 0.1 + tokens * 1e-4, now)
    return costs


def verdict(
    costs: HandoffCosts | None = None, config: HandoffConfig | None = None, now: float = 0.0, **view: Any
) -> Any:
    found = decide(HandoffCase(**view), measured() if costs is None else costs, config or HandoffConfig(), now)
    return found.remote, found.reason


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        ({"prompt_tokens": 1000}, (True, "worth")),
        ({"prompt_tokens": 100}, (False, "short")),
        ({"prompt_tokens": 1000, "cached_tokens": 900}, (False, "cached")),
        ({"prompt_tokens": 1000, "partners": 0}, (False, "no_prefill")),
        ({"prompt_tokens": 10, "pinned": True}, (True, "pinned")),
        ({"prompt_tokens": 10, "block_size": 16, "needed": True}, (True, "needed")),
        ({"prompt_tokens": 1000, "prefill_waiting": 5000}, (False, "busy")),
        ({"prompt_tokens": 1000, "prefill_waiting": 5000, "decode_waiting": 9000}, (True, "worth")),
        ({"prompt_tokens": 15, "block_size": 16}, (False, "short")),
        ({"prompt_tokens": 1000, "cached_tokens": 992, "block_size": 16}, (False, "cached")),
    ],
)
def test_a_prompt_is_split_when_computing_it_takes_longer_than_handing_it_over(
    view: dict[str, Any], expected: tuple[bool, str]
) -> None:
    assert verdict(**view) == expected


def test_costs_are_measured_by_one_request_at_a_time_and_again_when_they_are_old() -> None:
    nothing = HandoffCosts()
    assert verdict(nothing, prompt_tokens=100) == (True, "measuring")
    assert verdict(nothing, prompt_tokens=100, measuring=True) == (False, "unmeasured")
    assert verdict(nothing, prompt_tokens=5000, measuring=True) == (False, "unmeasured")
    assert verdict(now=STALE_SECONDS, prompt_tokens=100) == (True, "measuring")
    assert verdict(now=STALE_SECONDS, prompt_tokens=100, measuring=True) == (False, "short")


def test_a_prompt_much_longer_than_all_that_were_measured_is_measured_first() -> None:
    assert verdict(prompt_tokens=4000) == (True, "worth")
    assert verdict(prompt_tokens=4001) == (True, "measuring")
    assert verdict(prompt_tokens=4001, measuring=True) == (False, "unmeasured")


def test_a_prompt_much_shorter_than_all_that_were_measured_lately_is_measured_first() -> None:
    costs = HandoffCosts()
    for tokens in (8192, 128):
        assert verdict(costs, prompt_tokens=tokens) == (True, "measuring")
        costs.prefill.add(tokens, 0.017 + tokens * 2e-5, 0.0)
        costs.transfer.add(tokens, 0.006 + tokens * 2e-6, 0.0)
    assert verdict(costs, prompt_tokens=64) == (True, "worth")
    assert verdict(costs, prompt_tokens=63) == (True, "measuring")
    for _ in range(100):
        costs.prefill.add(8192, 0.181, 0.0)
        costs.transfer.add(8192, 0.022, 0.0)
    assert verdict(costs, prompt_tokens=8192) == (True, "worth")
    assert verdict(costs, prompt_tokens=128) == (True, "measuring")


def test_few_uncached_tokens_need_no_measurement_where_handing_over_takes_longer_than_the_shortest_prefill() -> None:
    assert verdict(prompt_tokens=2000, cached_tokens=1990) == (False, "cached")
    assert verdict(prompt_tokens=100, cached_tokens=90) == (False, "short")


def test_costs_are_measured_only_where_no_other_prompt_is_computed() -> None:
    assert verdict(HandoffCosts(), prompt_tokens=100, prefill_waiting=1) == (False, "unmeasured")
    assert verdict(now=STALE_SECONDS, prompt_tokens=1000, prefill_waiting=1) == (True, "worth")


def slow_network(*prompts: int) -> HandoffCosts:
    """A prompt of 128 tokens takes 18 ms or 14 ms, one of 8192 tokens 181 ms or 0.55 s."""
    costs = HandoffCosts()
    for tokens in (128, 8192):
        costs.prefill.add(tokens, 0.015 + tokens * 2e-5, 0.0)
        costs.transfer.add(tokens, 0.006 + tokens * 6.6e-5, 0.0)
    for tokens in prompts:
        costs.mix.add(tokens, tokens)
    return costs


def test_short_prompts_are_not_handed_over_where_the_decode_workers_compute_most_tokens_anyway() -> None:
    assert verdict(slow_network(128, 8192), prompt_tokens=128) == (False, "slow")
    assert verdict(slow_network(128, 8192), prompt_tokens=8192) == (False, "short")
    assert verdict(slow_network(128), prompt_tokens=128) == (True, "worth")
    assert verdict(slow_network(8192, *[128] * 500), prompt_tokens=128) == (True, "worth")
    assert verdict(slow_network(128, 20_000), prompt_tokens=128) == (False, "unmeasured")


lines = st.tuples(st.floats(0, 1), st.floats(0, 1e-3))
"""Seconds of no tokens, and of each."""


@given(lines, lines, st.lists(st.integers(16, 50_000), min_size=1, max_size=30), st.integers(0, 50_000))
def test_a_prompt_is_handed_over_only_where_that_is_faster_for_it_and_for_most_of_the_traffic(
    prefill: tuple[float, float], transfer: tuple[float, float], prompts: list[int], cached: int
) -> None:
    costs = HandoffCosts()
    for tokens in prompts:
        costs.prefill.add(tokens, prefill[0] + prefill[1] * tokens, 0.0)
        costs.transfer.add(tokens, transfer[0] + transfer[1] * tokens, 0.0)
        costs.mix.add(tokens, tokens)
    prompt = prompts[-1]
    typical = costs.mix.typical()
    assert typical
    assert min(prompts) <= typical[0] == typical[1] <= max(prompts)
    found = decide(HandoffCase(prompt_tokens=prompt, cached_tokens=min(cached, prompt)), costs, HandoffConfig(), 1.0)
    if found.reason == "worth":
        assert costs.gain(prompt, found.uncached_tokens) > 0
        assert costs.gain(*typical) > 0


def test_the_wait_for_other_prompts_does_not_count_as_transfer() -> None:
    costs = measured()
    before = costs.transfer.seconds(1000)
    costs.handed_over(1000, 0.9, 800, 0.0)  # 0.8 s of them, or not
    assert costs.transfer.seconds(1000) == before
    costs.handed_over(1000, 0.22, 40, 0.0)  # at most 0.04 s
    assert costs.transfer.samples == 4
    assert costs.transfer.seconds(1000) == pytest.approx(0.2, rel=0.02)
    nothing = HandoffCosts()
    nothing.prefill.add(1000, 1.0, 0.0)
    nothing.handed_over(1000, 1.2, 1000, 0.0)  # the first one is better than none
    assert nothing.transfer.seconds(1000) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("config", "view", "expected"),
    [
        ({"policy": "always"}, {"prompt_tokens": 20}, (True, "always")),
        ({"policy": "never"}, {"prompt_tokens": 20_000}, (False, "never")),
        ({"policy": "isl_bounding"}, {"prompt_tokens": 4000}, (True, "threshold")),
        ({"policy": "isl_bounding"}, {"prompt_tokens": 4000, "cached_tokens": 2500}, (False, "cached")),
        ({"policy": "isl_bounding"}, {"prompt_tokens": 500}, (True, "threshold")),
        ({"policy": "isl_bounding", "eff_isl_ratio_threshold": 1.0, "eff_isl_threshold": 9}, {"prompt_tokens": 500},
         (True, "threshold")),
        ({"policy": "prefill_load", "prefill_busy_threshold": 1}, {"prompt_tokens": 9, "prefill_waiting": 8193},
         (False, "busy")),
        ({"policy": "isl_bounding", "prefill_busy_threshold": 1}, {"prompt_tokens": 9, "prefill_waiting": 8193},
         (True, "threshold")),
        ({"policy": "isl_or_load", "prefill_busy_threshold": 1}, {"prompt_tokens": 9, "prefill_waiting": 8193},
         (False, "busy")),
        ({"policy": "isl_bounding", "decode_busy_threshold": 1},
         {"prompt_tokens": 4000, "cached_tokens": 3900, "decode_waiting": 9000}, (True, "decode_busy")),
    ],
)  # fmt: skip
def test_thresholds_replace_measurements(
    config: dict[str, Any], view: dict[str, Any], expected: tuple[bool, str]
) -> None:
    assert verdict(config=HandoffConfig(**config), **view) == expected


@given(
    st.lists(st.tuples(st.integers(0, 100_000), st.floats(0, 100)), max_size=30),
    st.lists(st.tuples(st.integers(0, 100_000), st.floats(0, 100)), max_size=30),
    st.integers(0, 100_000), st.integers(0, 100_000), st.booleans(),
)  # fmt: skip
def test_any_measurements_give_a_decision(
    prefills: list[tuple[int, float]], transfers: list[tuple[int, float]], prompt: int, cached: int, measuring: bool
) -> None:
    costs = HandoffCosts()
    for tokens, seconds in prefills:
        costs.prefill.add(tokens, seconds, 0.0)
    for tokens, seconds in transfers:
        costs.transfer.add(tokens, seconds, 0.0)
    found = decide(
        HandoffCase(prompt_tokens=prompt, cached_tokens=cached, measuring=measuring), costs, HandoffConfig(), 1.0
    )
    assert found.reason
    assert all(value is None or value >= 0 for value in (found.prefill_seconds, found.handoff_seconds))


@given(st.floats(0, 1), st.floats(1e-6, 1e-2), st.lists(st.integers(1, 50_000), min_size=3, unique=True))
def test_a_line_is_learned_from_its_points(start: float, slope: float, lengths: list[int]) -> None:
    fit = LineFit(proportion=True)
    for tokens in lengths:
        fit.add(tokens, start + slope * tokens, 0.0)
    expected = start + slope * max(lengths)
    assert fit.seconds(max(lengths)) == pytest.approx(expected, rel=0.05, abs=1e-3)


def peer(number: int, kind: WorkerType, *, namespace: str = "n", transfer: str | None = None, **card: Any) -> Peer:
    runtime = ModelRuntimeConfig(runtime_data={TRANSFER: transfer} if transfer else {})
    return Peer(
        instance_id=number,
        namespace=namespace,
        card=ModelCard(name="m", model_type=3, worker_type=kind, runtime_config=runtime, **card),
    )


def test_only_decode_workers_are_paired_and_only_with_workers_they_can_continue_from() -> None:
    tokenizer = {"tokenizer": CardFile(path="t", checksum="1")}
    decode = peer(1, WorkerType.Decode, transfer="x", files=tokenizer)
    fitting = [peer(2, WorkerType.Prefill, transfer="x", files=tokenizer), peer(3, WorkerType.Prefill)]
    others = {
        "namespace other, not n": peer(4, WorkerType.Prefill, namespace="other"),
        "blocks of 32 tokens, not 16": peer(5, WorkerType.Prefill, kv_cache_block_size=32),
        "hand-off by y, not by x": peer(6, WorkerType.Prefill, transfer="y"),
        "another tokenizer file": peer(7, WorkerType.Prefill, files={"tokenizer": CardFile(path="t", checksum="2")}),
    }
    assert partners(decode, [*fitting, *others.values()]) == {2, 3}
    assert {mismatch(decode, one) for one in others.values()} == set(others)
    assert partners(peer(1, WorkerType.Aggregated, transfer="x"), fitting) == frozenset()
