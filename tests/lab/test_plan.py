"""`dynamo plan`: the smallest fleet that meets the targets."""

from __future__ import annotations

import shlex
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from dynamo.engines.mocker import MockerArgs
from dynamo.lab.plan import command
from dynamo.lab.plan.search import PlannedFleet, Targets, plan_fleet
from dynamo.router.config import RoutingConfig
from dynamo.simulate import SimulationConfig, Synthetic

TRAFFIC = Synthetic(requests=60, input_tokens=800, output_tokens=20, interval=0.01)
TARGETS = Targets(ttft_ms=150.0, itl_ms=40.0)
FLEET = SimulationConfig(
    engine=MockerArgs(num_gpu_blocks=4096), routing=RoutingConfig(mode="round-robin"), name="round-robin"
)
FLAGS = shlex.split("--request-count 20 --input-tokens 500 --output-tokens 8 --arrival-interval-ms 5 --max-workers 2")


def test_the_smallest_fleet_that_meets_the_targets_is_found_beside_one_that_does_not() -> None:
    tried: list[PlannedFleet] = []
    plan = plan_fleet([FLEET], lambda: TRAFFIC, TARGETS, 32, tried.append)
    assert plan.best
    by_size = {fleet.workers: fleet for fleet in plan.fleets}
    assert plan.best.workers > 1
    assert by_size[plan.best.workers].share_within >= TARGETS.share > by_size[plan.best.workers - 1].share_within
    assert sorted(fleet.workers for fleet in tried) == list(by_size)


def test_the_smallest_split_is_found_and_beats_workers_that_do_everything_where_prompts_disturb_answers() -> None:
    """Answers may not wait for prompts of 4,000 tokens, so most of the workers would have to be idle."""
    traffic = Synthetic(requests=120, input_tokens=4000, output_tokens=100, interval=0.05)
    targets = Targets(ttft_ms=500.0, itl_ms=9.0)
    split = structs.replace(FLEET, prefill_workers=1, name="split")
    plan = plan_fleet([FLEET, split], lambda: traffic, targets, 24)
    best, tried = plan.best, {(fleet.prefill_workers, fleet.workers): fleet for fleet in plan.fleets}
    assert best
    assert best.settings == "split"
    assert best.prefill_workers > 1
    whole = [fleet.workers for fleet in plan.fleets if fleet.enough and fleet.settings == FLEET.name]
    assert best.total < min(whole, default=25)
    assert not any(fleet.enough for fleet in tried.values() if fleet.total < best.total)
    assert len([fleet for fleet in plan.fleets if fleet.settings == "split"]) < 2 * 24


def test_the_plan_is_printed_and_written_as_json_and_as_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "plan.json", tmp_path / "plan.html"
    command.main([*FLAGS, "--report-json", str(written[0]), "--report-html", str(written[1])])
    printed = capsys.readouterr().out
    shown = msgspec.json.decode(written[0].read_bytes())
    assert f"{shown['workers']} workers with {shown['settings']}: 95 % of requests" in printed
    assert {fleet["settings"] for fleet in shown["fleets"]} == {"--router-mode kv", "--router-mode round-robin"}
    assert "<polyline" in written[1].read_text()


def test_prefill_and_decode_workers_are_tried_where_that_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    command.main([*FLAGS, "--disagg", "--try", "--router-mode kv", "--ttft-ms", "10000", "--itl-ms", "10000"])
    printed = capsys.readouterr()
    assert "--router-mode kv, prefill + decode      1+1" in printed.out
    assert "1 workers with --router-mode kv: 95 % of requests" in printed.out


def test_targets_that_no_fleet_meets_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main([*FLAGS, "--ttft-ms", "1", "--try", "--router-mode kv"])
    assert ended.value.code == 1
    assert "no fleet of up to 2 workers has 95 % of requests within TTFT 1 ms" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["nowhere.jsonl"], "there is no trace nowhere.jsonl"),
        ([], "name a trace"),
        ([*FLAGS, "--ttft-ms", "-3"], "--ttft-ms"),
        ([*FLAGS, "--extra-engine-args", '{"planner_profile_data": "no.npz"}'], "no.npz"),
        ([*FLAGS, "--report-json", "/nowhere/plan.json"], "/nowhere/plan.json"),
    ],
)
def test_what_cannot_be_planned_is_refused_by_name(
    words: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(words)
    assert ended.value.code == 2
    assert named in capsys.readouterr().err
