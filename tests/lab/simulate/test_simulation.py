"""Traffic on a simulated fleet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec import structs

from dynamo.engines.mocker import MockerArgs
from dynamo.lab.simulate.page import as_page
from dynamo.lab.simulate.report import as_json, as_text
from dynamo.protocols.errors import InvalidArgument
from dynamo.router.config import RoutingConfig
from dynamo.simulate import Incident, SimulatedRequest, SimulationConfig, Synthetic, simulate

CONFIG = SimulationConfig(workers=3, engine=MockerArgs(num_gpu_blocks=256), seed=7)
ROUND_ROBIN = structs.replace(CONFIG, routing=RoutingConfig(mode="round-robin"))
GROUPS = Synthetic(
    requests=120, input_tokens=1024, output_tokens=24, interval=0.05, shared_prefix=0.75, groups=25, seed=3
)


def test_the_same_seed_gives_the_same_bytes() -> None:
    assert as_json(simulate(CONFIG, lambda: GROUPS)) == as_json(simulate(CONFIG, lambda: GROUPS))


def test_kv_routing_finds_more_cached_than_round_robin() -> None:
    kv, round_robin = simulate(CONFIG, lambda: GROUPS), simulate(ROUND_ROBIN, lambda: GROUPS)
    assert kv.completed == round_robin.completed == 120
    assert kv.input_tokens == round_robin.input_tokens == 120 * 1024
    assert kv.output_tokens == round_robin.output_tokens == 120 * 24
    assert kv.prefix_reuse > round_robin.prefix_reuse + 0.1


def test_requests_of_a_killed_worker_move_and_none_is_lost() -> None:
    config = structs.replace(ROUND_ROBIN, incidents=[Incident("kill", 1.0, 1), Incident("join", 2.0)])
    report = simulate(config, lambda: GROUPS)
    assert (report.completed, report.failed) == (120, 0)
    assert report.migrations > 0
    assert report.output_tokens == 120 * 24


def test_a_drained_worker_loses_and_moves_nothing() -> None:
    report = simulate(structs.replace(ROUND_ROBIN, incidents=[Incident("drain", 1.0, 1)]), lambda: GROUPS)
    assert (report.completed, report.failed, report.migrations) == (120, 0, 0)


def test_a_slow_worker_makes_the_slowest_requests_slower() -> None:
    usual = simulate(ROUND_ROBIN, lambda: GROUPS)
    slowed = simulate(structs.replace(ROUND_ROBIN, incidents=[Incident("slow", 0.0, 0, 10.0)]), lambda: GROUPS)
    assert usual.e2e_ms
    assert slowed.e2e_ms
    assert slowed.e2e_ms.p90 > 3 * usual.e2e_ms.p90


def test_prefill_workers_keep_long_prompts_away_from_running_answers() -> None:
    traffic = [
        SimulatedRequest(at=0.02 * n, input_tokens=4096 if n % 4 == 0 else 64, output_tokens=48, label=str(n))
        for n in range(160)
    ]
    config = structs.replace(CONFIG, engine=MockerArgs(num_gpu_blocks=4096), workers=4)
    whole = simulate(config, lambda: traffic)
    split = simulate(structs.replace(config, workers=2, prefill_workers=2), lambda: traffic)
    assert (split.completed, split.failed, split.output_tokens) == (160, 0, 160 * 48)
    assert sum(count for why, count in split.splits.items() if why.startswith("remote")) >= 20
    assert whole.splits == {}
    assert whole.itl_ms
    assert split.itl_ms
    assert split.itl_ms.p99 < whole.itl_ms.p99 / 3


def test_prompts_stay_where_they_are_while_a_transfer_takes_longer_than_computing() -> None:
    slow = structs.replace(CONFIG.engine, kv_transfer_bandwidth=0.5)
    config = structs.replace(CONFIG, engine=slow, workers=2, prefill_workers=2)
    traffic = [SimulatedRequest(at=0.5 * n, input_tokens=2048, output_tokens=4, label=str(n)) for n in range(40)]
    report = simulate(config, lambda: traffic)
    assert report.completed == 40
    assert report.splits["local short"] > 35


@pytest.mark.parametrize(("bandwidth", "split"), [(64.0, True), (8.0, True), (2.0, False), (1.0, False)])
@pytest.mark.parametrize("long_first", [True, False])
def test_short_prompts_are_handed_over_exactly_where_the_long_ones_are(
    bandwidth: float, split: bool, long_first: bool
) -> None:
    engine = MockerArgs(num_gpu_blocks=4096, kv_transfer_bandwidth=bandwidth)
    config = structs.replace(CONFIG, engine=engine, workers=2, prefill_workers=2)
    traffic = [
        SimulatedRequest(at=0.1 * n, input_tokens=8192 if n % 4 == 0 else 128, output_tokens=8, label=str(n))
        for n in range(0 if long_first else 1, 120)
    ]
    report = simulate(config, lambda: traffic)
    remote = sum(count for why, count in report.splits.items() if why.startswith("remote"))
    assert remote > 100 if split else remote < 10, report.splits


def test_an_incident_of_a_worker_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="no worker 9, only 3"):
        simulate(structs.replace(CONFIG, incidents=[Incident("kill", 0.0, 9)]), lambda: GROUPS)


def test_turns_of_a_session_follow_each_other_after_their_delay() -> None:
    def turns() -> Iterator[SimulatedRequest]:
        for turn in range(4):
            yield SimulatedRequest(
                at=None if turn else 0.0, input_tokens=64, output_tokens=2, session="s", delay=10.0 if turn else 0.0
            )

    report = simulate(CONFIG, turns)
    assert report.completed == 4
    assert 30 < report.virtual_seconds < 31


def test_with_a_concurrency_times_do_not_count() -> None:
    late = [SimulatedRequest(at=1000.0 * n, input_tokens=64, output_tokens=8, label=str(n)) for n in range(8)]
    report = simulate(structs.replace(CONFIG, concurrency=2), lambda: late)
    assert report.completed == 8
    assert report.virtual_seconds < 10


def test_a_prompt_that_cannot_fit_is_counted_as_failed() -> None:
    report = simulate(CONFIG, lambda: [SimulatedRequest(at=0.0, input_tokens=10**6, output_tokens=8)])
    assert (report.completed, report.failed) == (0, 1)
    assert report.errors == {"InvalidArgument": 1}


def test_the_time_of_a_frontend_is_added_to_the_time_to_the_first_token() -> None:
    traffic = Synthetic(requests=3, input_tokens=128, output_tokens=4, interval=10.0)
    reports = [simulate(SimulationConfig(frontend_seconds=seconds), lambda: traffic) for seconds in (0.0, 0.25)]
    without, added = (report.ttft_ms for report in reports)
    assert without
    assert added
    assert added.mean - without.mean == pytest.approx(250.0)


TIERED = SimulationConfig(workers=2, engine=MockerArgs(num_gpu_blocks=256, num_g2_blocks=2048), seed=7)
REVISITS = Synthetic(
    requests=240, input_tokens=4096, output_tokens=8, interval=0.15, shared_prefix=0.94, groups=34, seed=5
)
"""Prefixes of 34 × 60 blocks, four times what both caches hold."""


def test_a_working_set_of_four_caches_is_answered_sooner_with_host_memory_below() -> None:
    without = structs.replace(TIERED, engine=structs.replace(TIERED.engine, num_g2_blocks=0))
    tiered, plain = simulate(TIERED, lambda: REVISITS), simulate(without, lambda: REVISITS)
    assert tiered.completed == plain.completed == 240
    assert tiered.prefix_reuse > plain.prefix_reuse + 0.2
    assert tiered.restored_tokens["host"] > 0.2 * tiered.input_tokens
    assert plain.restored_tokens == {}
    assert tiered.ttft_ms
    assert plain.ttft_ms
    assert tiered.ttft_ms.mean < 0.9 * plain.ttft_ms.mean
    assert "of which from host memory" in as_text(tiered, plain)
    assert "of which from" not in as_text(plain)
    assert as_json(tiered) == as_json(simulate(TIERED, lambda: REVISITS))


def test_host_memory_that_is_slower_than_computing_changes_nothing() -> None:
    slow = structs.replace(TIERED, engine=structs.replace(TIERED.engine, bandwidth_g2_to_g1_gbps=0.1))
    without = structs.replace(TIERED, engine=structs.replace(TIERED.engine, num_g2_blocks=0))
    tiered, plain = simulate(slow, lambda: REVISITS), simulate(without, lambda: REVISITS)
    assert tiered.restored_tokens == {"host": 0}
    assert (tiered.ttft_ms, tiered.cached_tokens) == (plain.ttft_ms, plain.cached_tokens)


LITTLE_HOST = structs.replace(TIERED, engine=structs.replace(TIERED.engine, num_g2_blocks=256))
WITH_DISK = structs.replace(
    LITTLE_HOST, engine=structs.replace(LITTLE_HOST.engine, num_g3_blocks=2048, bandwidth_g3_to_g2_gbps=28.0)
)
BUSIER = structs.replace(REVISITS, interval=0.06)


def test_what_little_host_memory_forgets_is_found_on_disk() -> None:
    tiered, plain = simulate(WITH_DISK, lambda: BUSIER), simulate(LITTLE_HOST, lambda: BUSIER)
    assert tiered.completed == plain.completed == 240
    assert tiered.prefix_reuse > plain.prefix_reuse + 0.2
    assert tiered.restored_tokens["disk"] > 0.2 * tiered.input_tokens
    assert plain.restored_tokens.keys() == {"host"}
    assert tiered.ttft_ms
    assert plain.ttft_ms
    assert tiered.ttft_ms.mean < 0.5 * plain.ttft_ms.mean
    lines = [line.split("  ")[0] for line in as_text(tiered, plain).splitlines()]
    cached = lines.index("prompt tokens found cached")
    assert lines[cached + 1 : cached + 3] == ["of which from host memory", "of which from disk"]
    assert "of which from disk" not in as_text(plain)
    assert "of which from disk" in as_page(tiered)
    assert as_json(tiered) == as_json(simulate(WITH_DISK, lambda: BUSIER))


def test_routers_send_prompts_where_they_are_on_disk() -> None:
    round_robin = structs.replace(WITH_DISK, routing=RoutingConfig(mode="round-robin"))
    informed, blind = simulate(WITH_DISK, lambda: BUSIER), simulate(round_robin, lambda: BUSIER)
    assert informed.prefix_reuse > blind.prefix_reuse + 0.05


def test_a_disk_that_is_slower_than_computing_changes_nothing() -> None:
    slow = structs.replace(WITH_DISK, engine=structs.replace(WITH_DISK.engine, bandwidth_g3_to_g2_gbps=0.1))
    tiered, plain = simulate(slow, lambda: BUSIER), simulate(LITTLE_HOST, lambda: BUSIER)
    assert tiered.restored_tokens == plain.restored_tokens | {"disk": 0}
    assert (tiered.ttft_ms, tiered.cached_tokens) == (plain.ttft_ms, plain.cached_tokens)


def test_prompts_of_any_number_of_sessions_share_only_what_they_are_said_to_share() -> None:
    traffic = Synthetic(requests=1000, input_tokens=256, output_tokens=4, interval=0.01, shared_prefix=0.5, groups=3)
    prompts = [request.token_ids() for request in traffic]
    assert len({bytes(prompt) for prompt in prompts}) == len(prompts)
    assert len({bytes(prompt[:128]) for prompt in prompts}) == 3
    apart = Synthetic(requests=1000, input_tokens=256, output_tokens=4, interval=0.01, turns=2)
    begun = [request.token_ids() for request in apart]
    assert len({bytes(prompt[:64]) for prompt in begun}) == 500
