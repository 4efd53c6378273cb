"""The loop in closed circuit: on a simulated fleet in virtual time, and with a source and an actor that fail."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

import pytest
from msgspec import structs

from dynamo.engines.mocker import MockerArgs
from dynamo.lab.simulate.planner import PlannedReport, simulate_planned
from dynamo.planner import Planner, PlannerConfig, TrafficSeen
from dynamo.planner.config import Role
from dynamo.planner.metrics import PlannerMetrics
from dynamo.planner.parts import ActorError, Measurement, PoolLoad, PoolOrder, SourceError
from dynamo.runtime.exposition import exposition
from dynamo.simulate import SimulatedRequest, SimulationConfig

CONFIG = PlannerConfig(
    environment="virtual",
    optimization_target="sla",
    ttft_ms=4000.0,
    itl_ms=250.0,
    throughput_adjustment_interval_seconds=30.0,
    startup_seconds=12.0,
)
FLEET = SimulationConfig(
    workers=1, engine=MockerArgs(num_gpu_blocks=4096, speedup_ratio=0.1, max_num_seqs=32, startup_time=12.0)
)


def wave() -> Iterator[SimulatedRequest]:
    """Little traffic, then three times what one worker sustains, then little again."""
    at = 0.0
    while at < 240:
        yield SimulatedRequest(at=at, input_tokens=1000, output_tokens=60, label=f"at {at:.3f}")
        at += 0.35 if 40 < at < 120 else 4.0


@pytest.fixture(scope="module")
def report() -> PlannedReport:
    return simulate_planned(FLEET, CONFIG, wave)


def test_a_simulated_fleet_follows_its_load_and_loses_nothing(report: PlannedReport) -> None:
    assert max(report.workers) > min(report.workers)
    assert any(step < 0 for step in report.changes)
    assert report.failed == 0
    assert report.completed == len(list(wave()))


def test_a_simulated_fleet_turns_at_most_once_per_change_of_load(report: PlannedReport) -> None:
    assert report.reversals <= 2


def test_the_same_traffic_gives_the_same_decisions(report: PlannedReport) -> None:
    assert simulate_planned(FLEET, CONFIG, wave) == report


SPLIT = structs.replace(CONFIG, mode="disagg", max_gpu_budget=16)
SPLIT_FLEET = structs.replace(FLEET, prefill_workers=1, engine=structs.replace(FLEET.engine, max_num_seqs=256))


def hill(input_tokens: int, output_tokens: int, peak: float) -> Iterator[SimulatedRequest]:
    """It rises for two minutes to `peak` requests per second, stays for one, falls, and then there is little."""
    at = 0.0
    while at < 480:
        yield SimulatedRequest(
            at=at, input_tokens=input_tokens, output_tokens=output_tokens, label=f"{input_tokens} at {at:.3f}"
        )
        at += 1 / max(0.3, peak * min(1.0, at / 120, (300 - at) / 120))


def test_prefill_workers_follow_prompts_and_decode_workers_answers() -> None:
    most = {}
    for name, load in {"prompts": (3000, 8, 8.0), "answers": (600, 150, 6.0)}.items():
        report = simulate_planned(SPLIT_FLEET, SPLIT, lambda load=load: hill(*load))  # type: ignore[misc]
        assert (report.completed, report.failed) == (len(list(hill(*load))), 0)
        assert (report.prefill_workers[-1], report.workers[-1]) == (1, 1)
        most[name] = max(report.prefill_workers), max(report.workers)
    # Decode workers compute a part of the prompts while prefill workers are busy.
    assert min(most["prompts"]) >= 3, most
    prefill, decode = most["answers"]
    assert prefill < most["prompts"][0]
    assert prefill < decode
    assert decode >= 3


def test_a_mode_that_does_not_fit_the_fleet_is_refused() -> None:
    with pytest.raises(ValueError, match="mode: disagg is planned for a fleet with 0 prefill workers"):
        simulate_planned(FLEET, SPLIT, wave)
    with pytest.raises(ValueError, match="mode: agg is planned for a fleet with 1 prefill workers"):
        simulate_planned(SPLIT_FLEET, CONFIG, wave)


class Fleet:
    """A source and an actor whose answers the test sets."""

    def __init__(self) -> None:
        self.rate = 1.0
        self.workers = 2
        self.metrics = self.etcd = True
        self.asked: list[int] = []
        self.answers = True

    async def read(self) -> Measurement:
        if not self.metrics:
            raise SourceError("connection refused")
        traffic = TrafficSeen(requests=5 * self.rate, ttft=9.0, first_tokens=5, input_tokens=100, output_tokens=10)
        return Measurement(traffic=traffic, pools={"decode": PoolLoad(serving=self.workers)})


class FleetActor:
    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    async def read(self) -> Mapping[Role, PoolOrder]:
        if not self.fleet.etcd:
            raise ActorError("etcd is gone")
        return {"decode": PoolOrder(wanted=self.fleet.workers)}

    async def scale(self, workers: Mapping[Role, int]) -> None:
        self.fleet.workers = workers["decode"]
        self.fleet.asked.append(workers["decode"])
        if not self.fleet.answers:
            raise ActorError("no answer in time")


def planner(fleet: Fleet, config: PlannerConfig = CONFIG, metrics: PlannerMetrics | None = None) -> Planner:
    metrics = metrics or PlannerMetrics(config)
    return Planner(config, fleet, FleetActor(fleet), observer=metrics.observe)


async def test_each_tick_says_in_one_sentence_what_it_saw_and_did(caplog: pytest.LogCaptureFixture) -> None:
    fleet = Fleet()
    made = planner(fleet)
    with caplog.at_level(logging.INFO):
        await made.tick()
        await made.tick()
    assert fleet.asked == [3]
    assert (
        "TTFT 9000 ms; workers go from 2 to 3: the mean time to the first token is 9000 ms, above 4000 ms"
        in (caplog.messages[-1])
    )


async def test_advice_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    fleet = Fleet()
    made = planner(fleet, structs.replace(CONFIG, advisory=True))
    with caplog.at_level(logging.INFO):
        await made.tick()
        await made.tick()
    assert fleet.asked == []
    assert "workers would go from 2 to 3" in caplog.messages[-1]


async def test_metrics_that_are_gone_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    fleet = Fleet()
    made = planner(fleet)
    fleet.metrics = False
    with caplog.at_level(logging.INFO):
        for _ in range(20):
            await made.tick()
    assert fleet.asked == []
    assert caplog.messages.count("the metrics cannot be read: connection refused") == 1
    assert "saw no metrics; workers stay at 2: the metrics are missing" in caplog.messages


async def test_an_actor_that_is_gone_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    fleet = Fleet()
    made = planner(fleet)
    fleet.etcd = False
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            decision = await made.tick()
    assert decision.decode is None
    assert "workers: their number is unknown, so it does not change" in caplog.messages[-1]


async def test_a_number_set_by_hand_is_not_fought(caplog: pytest.LogCaptureFixture) -> None:
    fleet = Fleet()
    made = planner(fleet)
    await made.tick()
    await made.tick()
    fleet.workers = 6
    for _ in range(5):
        decision = await made.tick()
    assert fleet.workers == 6
    assert decision.decode
    assert decision.decode.state == "manual_change"


async def test_a_change_without_an_answer_is_not_taken_for_someone_elses() -> None:
    fleet = Fleet()
    fleet.answers = False
    made = planner(fleet)
    for _ in range(3):
        decision = await made.tick()
    assert fleet.asked == [3]
    assert decision.decode
    assert decision.decode.state != "manual_change"


async def test_the_metrics_show_what_was_seen_and_decided() -> None:
    metrics = PlannerMetrics(CONFIG)
    fleet = Fleet()
    made = planner(fleet, metrics=metrics)
    await made.tick()
    await made.tick()
    shown = exposition(metrics.snapshot()).decode().splitlines()
    assert "dynamo_planner_num_decode_replicas 2.0" in shown
    assert "dynamo_planner_wanted_decode_replicas 3.0" in shown
    assert "dynamo_planner_observed_ttft_ms 9000.0" in shown
    assert 'dynamo_planner_scaling_decision{role="decode",state="scale_up"} 1.0' in shown
    fleet.metrics = False
    await made.tick()
    shown = exposition(metrics.snapshot()).decode().splitlines()
    assert not any(line.startswith("dynamo_planner_observed_ttft_ms ") for line in shown)
    assert 'dynamo_planner_ticks_total{metrics="missing"} 1.0' in shown
