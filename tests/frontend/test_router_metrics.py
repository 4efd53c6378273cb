"""The metrics of routers under ai-dynamo's names: they follow what happens."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dynamo import prometheus_names
from dynamo.llm import KvEventPublisher
from dynamo.protocols.card import LoraInfo
from dynamo.protocols.worker_name import worker_name
from dynamo.router import RoutingConfig
from dynamo.runtime import Context, DistributedRuntime
from support.toys import Live, Scripted, metrics_once, toy_card

BLOCK = 16
PROMPT = [token % 90 + 5 for token in range(2 * BLOCK + 3)]
EVENTS = 'dynamo_component_kv_cache_events_applied{{event_type="{}",model="toy",status="ok"}}'


def ask(**nvext: Any) -> dict[str, Any]:
    return {"model": "toy", "prompt": PROMPT, "max_tokens": 3, "ignore_eos": True, "nvext": nvext}


def at(metrics: dict[str, float], name: str, **labels: str) -> float:
    """The series of the one router of this process."""
    found = [
        value
        for series, value in metrics.items()
        if series.startswith(f"dynamo_component_router_{name}{{")
        and 'router_id="' in series
        and all(f'{label}="{wanted}"' in series for label, wanted in {"model": "toy", **labels}.items())
    ]
    assert len(found) == 1, name
    return found[0]


@pytest.fixture
async def live() -> AsyncIterator[Live]:
    async with Live(router=RoutingConfig(mode="kv")) as frontend:
        yield frontend


def publisher(worker: DistributedRuntime) -> KvEventPublisher:
    return KvEventPublisher(worker.endpoint("toy.backend.generate"), kv_block_size=BLOCK)


async def test_routed_requests_are_measured_as_at_the_frontend(live: Live, folder: Path) -> None:
    await live.serve(Scripted().generate, toy_card(folder))
    status, answer = await live.post("/v1/completions", ask())
    assert status == 200
    metrics = await live.metrics()
    assert at(metrics, "requests_started_total") == at(metrics, "requests_total") == 1
    assert at(metrics, "time_to_first_token_seconds_count") == 1
    seconds = metrics['dynamo_frontend_time_to_first_token_seconds_sum{model="toy"}']
    assert 0 < at(metrics, "time_to_first_token_seconds_sum") < seconds
    assert at(metrics, "input_sequence_tokens_sum", phase="aggregated") == len(PROMPT)
    assert at(metrics, "output_sequence_tokens_sum") == answer["usage"]["completion_tokens"]
    gaps = metrics['dynamo_frontend_inter_token_latency_seconds_count{model="toy"}']
    assert at(metrics, "inter_token_latency_seconds_count") == gaps > 0


async def test_the_names_that_programs_can_import_are_published(live: Live, folder: Path) -> None:
    await live.serve(Scripted().generate, toy_card(folder))
    assert (await live.post("/v1/completions", ask()))[0] == 200
    families = {family.name for family in await live.server.families()}
    names = [*vars(prometheus_names.router).items(), *vars(prometheus_names.kvrouter).items()]
    for name in [value.removesuffix("_total") for constant, value in names if constant.isupper()]:
        assert f"{prometheus_names.name_prefix.COMPONENT}_{name}" in families


async def test_kv_events_count_by_type(live: Live, folder: Path) -> None:
    worker = await live.serve(Scripted().generate, toy_card(folder))
    out, blocks = publisher(worker), itertools.count(1)
    assert (await live.metrics())[EVENTS.format("stored")] == 0

    def stored(metrics: dict[str, float]) -> bool:
        """The first ones are in the router's first snapshot, and are no events."""
        block = next(blocks)
        out.publish_stored([block] * BLOCK, [BLOCK], [block])
        return metrics[EVENTS.format("stored")] > 0

    await metrics_once(live.metrics, stored)
    out.publish_removed([1])
    await metrics_once(live.metrics, lambda seen: seen[EVENTS.format("removed")] == 1)
    out.publish_cleared()
    metrics = await metrics_once(live.metrics, lambda seen: seen[EVENTS.format("cleared")] == 1)
    assert at(metrics, "kv_known_blocks") == 0
    assert metrics['dynamo_component_kv_cache_event_warnings{model="toy",warning_kind="duplicate_store"}'] == 0
    async with live.http.get("/metrics") as text:
        assert "# TYPE dynamo_component_kv_cache_events_applied counter" in (await text.text()).splitlines()


async def test_prefix_tokens_count_at_the_chosen_worker_and_at_the_best(live: Live, folder: Path) -> None:
    workers = [await live.serve(Scripted().generate, toy_card(folder)) for _ in range(2)]
    publisher(workers[0]).publish_stored(PROMPT[: 2 * BLOCK], [BLOCK, BLOCK], [1, 2])
    publisher(workers[1])
    await metrics_once(live.metrics, lambda seen: at(seen, "kv_known_blocks") == 2)
    for worker in workers:
        assert (await live.post("/v1/completions", ask(backend_instance_id=worker.instance_id)))[0] == 200
    metrics = await live.metrics()
    assert at(metrics, "kv_selected_cached_prefix_tokens_total", phase="aggregated") == 2 * BLOCK
    assert at(metrics, "kv_best_eligible_cached_prefix_tokens_total", phase="aggregated") == 4 * BLOCK
    assert at(metrics, "non_max_overlap_selections_total", worker_type="decode") == 1
    assert at(metrics, "overlap_blocks_lost_count", worker_type="decode") == 1
    assert at(metrics, "overlap_blocks_lost_sum", worker_type="decode") == 2


async def test_tokens_that_workers_say_they_reused_are_added_up(live: Live, folder: Path) -> None:
    async def cached(request: dict[str, Any], context: Context) -> AsyncIterator[dict[str, Any]]:
        usage = {"prompt_tokens": len(PROMPT), "prompt_tokens_details": {"cached_tokens": 7}}
        yield {"token_ids": [5]}
        yield {"token_ids": [], "finish_reason": "length", "completion_usage": usage}

    await live.serve(cached, toy_card(folder))
    for _ in range(2):
        assert (await live.post("/v1/completions", ask()))[0] == 200
    assert at(await live.metrics(), "kv_worker_reused_tokens_total", phase="aggregated") == 14


async def test_workers_are_registered_until_they_leave_and_those_with_unknown_caches_are_counted(
    live: Live, folder: Path
) -> None:
    known = await live.serve(Scripted().generate, toy_card(folder))
    publisher(known)
    silent = await live.serve(Scripted().generate, toy_card(folder))

    def registered(worker: DistributedRuntime) -> str:
        name = worker_name(worker.instance_id)
        labels = f'dp_rank="0",router_worker_id="{worker.instance_id}",worker_name="{name}",worker_type="decode"'
        return f"dynamo_component_router_worker_registered{{{labels}}}"

    target = 'target_component="backend",target_endpoint="generate",target_namespace="toy",worker_type="decode"'
    mismatch = f'dynamo_component_router_kv_event_source_mismatch_workers{{model="toy",{target}}}'
    metrics = await metrics_once(live.metrics, lambda seen: seen.get(mismatch) == 1)
    assert metrics[registered(known)] == metrics[registered(silent)] == 1
    silent.shutdown()
    metrics = await metrics_once(live.metrics, lambda seen: registered(silent) not in seen)
    assert metrics[registered(known)] == 1
    assert metrics[mismatch] == 0


async def test_cached_tokens_of_requests_that_wait_are_known(folder: Path) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(request: dict[str, Any], context: Context) -> AsyncIterator[dict[str, Any]]:
        begun.set()
        await go_on.wait()
        yield {"token_ids": [5], "finish_reason": "length"}

    pending = 'dynamo_frontend_router_queue_pending_cached_tokens{model="toy"}'
    async with Live(router=RoutingConfig(mode="kv", queue_threshold=0.0)) as live:
        worker = await live.serve(slow, toy_card(folder, max_num_batched_tokens=8))
        publisher(worker).publish_stored(PROMPT[: 2 * BLOCK], [BLOCK, BLOCK], [1, 2])
        await metrics_once(live.metrics, lambda seen: at(seen, "kv_known_blocks") == 2)
        first = asyncio.create_task(live.post("/v1/completions", ask()))
        await begun.wait()
        second = asyncio.create_task(live.post("/v1/completions", ask()))
        metrics = await metrics_once(live.metrics, lambda seen: seen[pending] > 0)
        assert metrics[pending] == 2 * BLOCK
        assert metrics['dynamo_frontend_router_queue_pending_isl_tokens{model="toy"}'] == len(PROMPT)
        go_on.set()
        assert [(await each)[0] for each in (first, second)] == [200, 200]
        assert (await live.metrics())[pending] == 0


async def test_an_adapter_has_gauges_of_its_own(live: Live, folder: Path) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(request: dict[str, Any], context: Context) -> AsyncIterator[dict[str, Any]]:
        begun.set()
        await go_on.wait()
        yield {"token_ids": [5], "finish_reason": "length"}

    card = toy_card(folder, name="poet")
    card.lora = LoraInfo(name="poet", base_model="toy")
    await live.serve(slow, card)

    async def gauges() -> list[float]:
        metrics = await live.metrics()
        names = ("active_requests", "is_active", "replica_factor")
        return [metrics[f'dynamo_frontend_lora_{name}{{lora="poet"}}'] for name in names]

    assert await gauges() == [0, 0, 1]
    asking = asyncio.create_task(live.post("/v1/completions", {**ask(), "model": "poet"}))
    await begun.wait()
    assert await gauges() == [1, 1, 1]
    go_on.set()
    assert (await asking)[0] == 200
    assert await gauges() == [0, 0, 1]
