"""Decisions are a pure function of history and configuration: no process, no clock."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from dynamo.planner import Observation, PlannerConfig, PoolDecision, PoolSeen, TrafficSeen, decide

CONFIG = PlannerConfig(environment="virtual", throughput_adjustment_interval_seconds=30.0, max_gpu_budget=16)
SLA = structs.replace(CONFIG, optimization_target="sla", ttft_ms=500.0, itl_ms=50.0, startup_seconds=0.0)
LIMIT = 1000.0
"""Prompt tokens per second at which a worker of these tests is overloaded."""
IDLE = 0.1


def traffic(rate: float, workers: int, *, waiting: float = 0.0) -> TrafficSeen:
    """As a fleet would measure it whose latency grows with its load."""
    load = min(0.95, 100 * rate / (max(workers, 1) * LIMIT))
    return TrafficSeen(
        requests=5 * rate,
        first_tokens=5 * rate,
        input_tokens=100.0,
        output_tokens=10.0,
        generated=50 * rate,
        ttft=IDLE / (1 - load) if rate else None,
        itl=0.01 if rate else None,
        waiting=waiting,
        context_length=1000.0,
    )


def seen(at: int, rate: float | None, workers: int, **pool: Any) -> Observation:
    known: dict[str, Any] = {"wanted": workers, "serving": workers} | pool
    return Observation(
        at=5.0 * at,
        seconds=5.0,
        traffic=None if rate is None else traffic(rate, workers),
        decode=PoolSeen(**known),
    )


def steady(rate: float, workers: int, ticks: int = 12, **pool: Any) -> list[Observation]:
    return [seen(at, rate, workers, **pool) for at in range(ticks)]


LEARNED = [seen(at, 1.0 + at, 4) for at in range(24)]
"""Load that rises on four workers, so that what one sustains is known."""


def chosen(history: Sequence[Observation], config: PlannerConfig = SLA) -> PoolDecision:
    decision = decide(history, config).decode
    assert decision
    return decision


def after(
    history: Sequence[Observation], rate: float | None, workers: int, ticks: int = 12, **pool: Any
) -> list[Observation]:
    return [*history, *(seen(len(history) + at, rate, workers, **pool) for at in range(ticks))]


observations = st.builds(
    lambda rate, wanted, serving, starting, asked, busy, queued, kv: (rate, {
        "wanted": wanted, "serving": serving, "starting": starting, "asked": asked, "in_progress": busy,
        "queued_tokens": queued, "kv_rate": kv,
    }),
    st.none() | st.floats(0, 1e4), st.integers(0, 40), st.none() | st.integers(0, 40), st.integers(0, 5),
    st.none() | st.integers(0, 40), st.booleans(), st.floats(0, 1e6), st.none() | st.floats(0, 1),
)  # fmt: skip
configs = st.builds(
    lambda target, predictor, least, more, mode: structs.replace(
        SLA, optimization_target=target, load_predictor=predictor, min_endpoint=least, max_gpu_budget=2 * least + more,
        mode=mode,
    ),
    st.sampled_from(["throughput", "latency", "load", "sla"]), st.sampled_from(["constant", "arima", "kalman"]),
    st.integers(1, 5), st.integers(0, 20), st.sampled_from(["agg", "decode"]),
)  # fmt: skip
histories = st.lists(observations, min_size=1, max_size=20).map(
    lambda rows: [seen(at, rate, 1, **pool) for at, (rate, pool) in enumerate(rows)]
)


@settings(max_examples=40)
@given(histories, configs)
def test_the_same_history_gives_the_same_decision(history: list[Observation], config: PlannerConfig) -> None:
    assert decide(history, config) == decide(list(history), config)


@settings(max_examples=40)
@given(histories, configs)
def test_a_decision_is_never_below_the_minimum_or_above_the_budget(
    history: list[Observation], config: PlannerConfig
) -> None:
    assert config.min_endpoint <= chosen(history, config).workers <= config.max_gpu_budget


@settings(max_examples=40)
@given(histories, configs)
def test_a_decision_takes_no_more_away_than_the_step_allows(history: list[Observation], config: PlannerConfig) -> None:
    wanted = min(history[-1].decode.wanted, config.max_gpu_budget)  # type: ignore[union-attr]
    assert chosen(history, config).workers >= wanted - config.scale_down_step


@settings(max_examples=40)
@given(histories, configs)
def test_missing_metrics_hold(history: list[Observation], config: PlannerConfig) -> None:
    workers = (config.min_endpoint + config.max_gpu_budget) // 2
    decision = chosen(after(history, None, workers, 1), config)
    assert (decision.workers, decision.state) == (workers, "insufficient_data")


@given(st.floats(0.5, 60), st.floats(0.5, 60))
def test_more_demand_never_needs_fewer_workers(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert chosen(after(LEARNED, low, 4)).workers <= chosen(after(LEARNED, high, 4)).workers


@given(st.floats(0, 1), st.floats(0, 1), st.integers(1, 16), st.sampled_from(["throughput", "latency", "load"]))
def test_more_load_never_needs_fewer_workers(one: float, other: float, workers: int, target: Any) -> None:
    low, high = sorted((one, other))
    config = structs.replace(CONFIG, optimization_target=target)
    assert (
        chosen(steady(1.0, workers, kv_rate=low), config).workers
        <= chosen(steady(1.0, workers, kv_rate=high), config).workers
    )


@pytest.mark.parametrize("target", ["sla", "throughput", "latency", "load"])
@pytest.mark.parametrize("rate", [0.5, 3.0, 5.5, 11.0, 20.0, 22.5, 60.0])
def test_a_constant_noisy_load_settles_without_swinging(target: Any, rate: float) -> None:
    """The plant is a queue; its workers start one tick after they were asked for. One to four sustain 5.7 each."""
    config = structs.replace(SLA, optimization_target=target)
    rng, history, workers, serving, steps = random.Random(3), [], 4, 4, []
    for at in range(200):
        now = max(0.0, rng.gauss(rate, (rate / 5) ** 0.5))
        load = min(1.0, 100 * now / (serving * LIMIT))
        pool: dict[str, Any] = {"wanted": workers, "starting": workers - serving, "asked": workers if at else None}
        if target != "sla":
            pool |= {"kv_rate": load, "queued_tokens": 300 * serving * load}
        history.append(seen(at, now, serving, **pool))
        decided = chosen(history, config).workers
        serving = min(workers, decided)
        if decided != workers:
            steps.append(decided - workers)
        workers = decided
    assert sum((a > 0) != (b > 0) for a, b in pairwise(steps)) <= 1, str(steps)


def test_workers_are_added_at_once_and_taken_away_after_the_window() -> None:
    grown = chosen(after(LEARNED, 80.0, 4, 5))
    assert (grown.state, grown.workers) == ("scale_up", 4 + SLA.scale_up_step)
    assert chosen(after(LEARNED, 2.0, 4, 1)).state == "no_change"
    shrunk = chosen(after(LEARNED, 2.0, 4, 12))
    assert (shrunk.state, shrunk.workers) == ("scale_down", 3)


def test_no_worker_is_taken_away_soon_after_one_was_added() -> None:
    calm = after(LEARNED, 2.0, 3, 12)
    assert chosen(after(calm, 2.0, 4, 2)).state == "no_change"
    assert chosen(after(calm, 2.0, 4, 8)).state == "scale_down"


def states_of_four(before: int, config: PlannerConfig) -> list[str]:
    """What is decided at rates from low to high, on four workers of which there were `before` earlier."""
    return [
        chosen(after(after(LEARNED, rate / 10, before, 3), rate / 10, 4, 40), config).state
        for rate in range(100, 330, 2)
    ]


def test_where_workers_start_quickly_it_takes_less_to_go_on_down_and_more_to_turn() -> None:
    fallen, risen = states_of_four(5, SLA), states_of_four(3, SLA)
    assert fallen.count("scale_down") > risen.count("scale_down") > 0
    assert 0 < fallen.count("scale_up") < risen.count("scale_up")
    slow = structs.replace(SLA, startup_seconds=SLA.throughput_adjustment_interval_seconds)
    assert states_of_four(5, slow) == states_of_four(3, slow)


def test_a_steady_rise_is_met_before_it_is_there() -> None:
    """A mean would be behind it by half of what it covers."""
    config = structs.replace(SLA, startup_seconds=30.0)
    rates = [10.0 + at / 8 for at in range(32)]
    rising = [seen(at, rate, 4) for at, rate in enumerate(rates)]
    expected = decide(rising, config).forecast.requests_per_second
    assert expected
    assert rates[-1] < expected < rates[-1] + 7 / 8


def test_of_a_sudden_change_more_is_believed_until_it_lasts() -> None:
    sudden = decide(after(steady(4.0, 4, 20), 12.0, 4, 1), SLA).forecast
    lasting = decide(after(steady(4.0, 4, 20), 12.0, 4, 6), SLA).forecast
    assert sudden.demand.rate == lasting.demand.rate == 12.0
    assert sudden.requests_per_second is not None is not lasting.requests_per_second
    assert sudden.requests_per_second > lasting.requests_per_second >= 12.0


def test_requests_that_wait_too_long_count_as_demand() -> None:
    history = after(LEARNED, 20.0, 4)
    calm = structs.replace(history[-1], traffic=traffic(20.0, 4))
    jammed = structs.replace(history[-1], traffic=traffic(20.0, 4, waiting=400.0))
    assert chosen([*history[:-1], calm]).state == "no_change"
    assert chosen([*history[:-1], jammed]).state == "scale_up"


def test_missing_data_inside_the_window_forbids_a_scale_down() -> None:
    calm = after(LEARNED, 2.0, 4, 12)
    assert chosen(calm).state == "scale_down"
    gap = structs.replace(calm[-3], traffic=None)
    assert chosen([*calm[:-3], gap, *calm[-2:]]).state == "no_change"


def test_a_target_that_an_idle_worker_misses_is_named_and_not_chased() -> None:
    decision = chosen(after(LEARNED, 2.0, 4, 3), structs.replace(SLA, ttft_ms=20.0))
    assert decision.workers == 4
    assert re.search(r"a worker without load would take 10\d ms, so more workers cannot help$", decision.reason)


def test_a_fleet_that_was_always_overloaded_grows() -> None:
    """Nothing is known about how fast a worker is without load."""
    jammed = structs.replace(traffic(40.0, 2), ttft=30.0)
    slow = [structs.replace(each, traffic=jammed) for each in steady(40.0, 2, 8)]
    decision = chosen(slow)
    assert (decision.state, decision.workers) == ("scale_up", 4)


def test_running_requests_keep_the_workers_that_their_kv_blocks_need() -> None:
    assert chosen(after(LEARNED, 2.0, 4, 12, kv_rate=0.2)).state == "scale_down"
    assert chosen(after(LEARNED, 2.0, 4, 12, kv_rate=0.8)).state == "no_change"


def test_workers_that_are_starting_are_not_asked_for_again() -> None:
    """Start-up slower than the interval."""
    needed = chosen(after(LEARNED, 50.0, 4, 3)).workers
    waiting = after(LEARNED, 50.0, 4, 3)
    waiting[-1] = seen(len(waiting) - 1, 50.0, 4, wanted=needed, starting=needed - 4)
    assert chosen(waiting).workers <= needed + SLA.scale_up_step
    enough = after(LEARNED, 50.0, 4, 3)
    enough[-1] = seen(len(enough) - 1, 50.0, 4, wanted=16, starting=12)
    assert chosen(enough).workers == 16


def test_a_change_by_someone_else_is_kept_for_a_while_and_then_planned_from() -> None:
    config = structs.replace(SLA, manual_hold_seconds=60.0)
    history = after(LEARNED, 2.0, 2, 12, asked=2)
    manual = after(history, 2.0, 6, 1, asked=2)
    decision = chosen(manual, config)
    assert (decision.state, decision.workers) == ("manual_change", 6)
    manual = after(manual, 2.0, 6, 10, asked=6)
    assert chosen(manual, config).state == "manual_change"
    assert chosen(after(manual, 2.0, 6, 3, asked=6), config).state == "scale_down"


def test_a_change_by_someone_else_is_noticed_after_an_outage_too() -> None:
    history = after(LEARNED, 2.0, 2, 12, asked=2)
    outage = [Observation(at=5.0 * (len(history) + at), seconds=5.0, traffic=None) for at in range(3)]
    assert chosen(after([*history, *outage], 2.0, 6, 1, asked=2)).state == "manual_change"
    assert chosen(after([*history, *outage], 2.0, 2, 1, asked=2)).state != "manual_change"


def test_a_worker_too_few_or_too_many_takes_none_away_and_still_adds() -> None:
    assert chosen(after(LEARNED, 2.0, 4, 12, serving=3)).state == "worker_count_mismatch"
    assert chosen(after(LEARNED, 2.0, 4, 12, serving=5)).state == "worker_count_mismatch"
    busy = after(LEARNED, 50.0, 4, 3, serving=3)
    assert chosen(busy).state == "scale_up"


def test_nothing_follows_until_the_last_decision_is_carried_out() -> None:
    assert chosen(after(LEARNED, 50.0, 4, 3, in_progress=True)).state == "scaling_in_progress"


def test_prefill_and_decode_workers_share_the_budget() -> None:
    config = structs.replace(CONFIG, mode="disagg", max_gpu_budget=9, prefill_engine_num_gpu=2, scale_up_step=20)
    pool = PoolSeen(wanted=2, serving=2, kv_rate=1.0, queued_tokens=20000.0)
    now = Observation(at=0.0, seconds=5.0, traffic=traffic(1.0, 2), prefill=pool, decode=pool)
    decision = decide([now], config)
    assert decision.prefill
    assert decision.decode
    assert decision.prefill.workers >= 1 <= decision.decode.workers
    assert 2 * decision.prefill.workers + decision.decode.workers <= 9
    least = decide([now], structs.replace(config, max_gpu_budget=20, min_gpu_budget=20))
    assert least.prefill
    assert least.decode
    assert 19 <= 2 * least.prefill.workers + least.decode.workers <= 20


def test_prompts_that_decode_workers_compute_are_no_merit_of_prefill_workers() -> None:
    config = structs.replace(SLA, mode="disagg")

    def needed(split_share: float | None) -> int:
        pool = PoolSeen(wanted=4, serving=4)
        history = [
            structs.replace(
                each, traffic=each.traffic and structs.replace(each.traffic, split_share=split_share),
                prefill=pool, decode=pool,
            )
            for each in after(LEARNED, 24.0, 4, 30)
        ]  # fmt: skip
        decision = decide(history, config).prefill
        assert decision
        return decision.workers

    assert needed(0.25) > needed(1.0) == needed(None)


def test_a_pool_whose_workers_are_unknown_is_left_alone() -> None:
    assert decide([Observation(at=0.0, seconds=5.0, traffic=traffic(1.0, 1))], SLA).decode is None


def test_no_request_at_all_leads_to_the_minimum() -> None:
    assert chosen(steady(0.0, 3)).workers == 2
    assert chosen(steady(0.0, 1)).workers == 1


def test_a_load_at_which_the_target_was_missed_is_not_believed_to_be_fine() -> None:
    """Overload hides itself: what is completed no longer grows, and latency seems not to depend on it."""
    jammed = [structs.replace(seen(at, 20.0 + at % 3, 2), traffic=structs.replace(traffic(20.0 + at % 3, 2), itl=0.2))
              for at in range(12)]  # fmt: skip
    line = decide(jammed, SLA).forecast.itl
    assert line
    assert (
        line.sustainable_rate(0.05, 1.2, 100.0, 10.0) <= 11.0
    )  # requests per second and worker, where 0.2 s were seen


def test_a_jam_that_new_workers_cannot_help_does_not_make_workers_look_slow() -> None:
    """What waits stays where it was sent: the mean of eight workers shows long waits at half the load."""
    jam = [
        structs.replace(seen(24 + at, 20.0, 8), traffic=structs.replace(traffic(20.0, 8, waiting=200.0), ttft=30.0))
        for at in range(24)
    ]
    before, after_it = decide(LEARNED, SLA).forecast.ttft, decide([*LEARNED, *jam], SLA).forecast.ttft
    assert before
    assert after_it
    assert after_it.sustainable_rate(0.5, 3.0, 100.0, 10.0) == pytest.approx(
        before.sustainable_rate(0.5, 3.0, 100.0, 10.0), rel=0.01
    )
