"""What the frontend tells of each worker, and whether a model can be served at all."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dynamo.llm import WorkerMetricsPublisher
from dynamo.llm.register import register_card
from dynamo.protocols.worker_name import worker_name
from dynamo.router import RoutingConfig
from dynamo.runtime import Context, DistributedRuntime, RuntimeConfig
from support.toys import Live, Scripted, metrics_once, toy_card

CHAT = {"model": "toy", "messages": [{"role": "user", "content": "hello " * 40}], "max_tokens": 4}


def at(name: str, worker: DistributedRuntime) -> str:
    id = worker.instance_id
    labels = f'dp_rank="0",worker_id="{id}",worker_name="{worker_name(id)}",worker_type="decode"'
    return f"dynamo_frontend_worker_{name}{{{labels}}}"


@pytest.fixture
async def by_caches() -> AsyncIterator[Live]:
    async with Live(router=RoutingConfig(mode="kv")) as frontend:
        yield frontend


async def test_what_a_router_has_booked_is_the_load_of_a_worker(by_caches: Live, folder: Path) -> None:
    begun, go_on, answered, end = (asyncio.Event() for _ in range(4))

    async def slow(request: dict[str, Any], context: Context) -> AsyncIterator[dict[str, Any]]:
        begun.set()
        await go_on.wait()
        yield {"token_ids": [5]}
        answered.set()
        await end.wait()
        yield {"token_ids": [6], "finish_reason": "length"}

    worker = await by_caches.serve(slow, toy_card(folder))
    tokens, blocks = at("active_prefill_tokens", worker), at("active_decode_blocks", worker)
    assert [(await by_caches.metrics())[name] for name in (tokens, blocks)] == [0, 0]
    asking = asyncio.create_task(by_caches.post("/v1/chat/completions", CHAT))
    await begun.wait()
    metrics = await by_caches.metrics()
    assert metrics[tokens] > 40
    assert metrics[blocks] == metrics[tokens] // 16
    go_on.set()
    await answered.wait()
    metrics = await metrics_once(by_caches.metrics, lambda seen: not seen[tokens])
    assert metrics[blocks] > 0
    end.set()
    assert (await asking)[0] == 200
    assert (await by_caches.metrics())[blocks] == 0


async def test_without_caches_a_workers_own_reports_are_exported_once_a_threshold_is_set(
    live: Live, folder: Path
) -> None:
    worker = await live.serve(Scripted().generate, toy_card(folder))
    blocks = at("active_decode_blocks", worker)
    assert blocks not in await live.metrics()
    limit = {"model": "toy", "active_decode_blocks_threshold": 0.9}
    assert (await live.post("/busy_threshold", limit))[0] == 200
    publisher = WorkerMetricsPublisher()
    await publisher.create_endpoint(worker.endpoint("toy.backend.generate"))
    used = itertools.count(1)

    def told(metrics: dict[str, float]) -> bool:
        publisher.publish(active_decode_blocks=next(used), active_prefill_tokens=7)
        return blocks in metrics

    metrics = await metrics_once(live.metrics, told)
    assert 0 < metrics[blocks] < next(used)
    assert metrics[at("active_prefill_tokens", worker)] == 7


async def test_the_last_request_of_each_worker_is_exported_and_forgotten_with_it(live: Live, folder: Path) -> None:
    workers = [await live.serve(Scripted().generate, toy_card(folder)) for _ in range(2)]
    prompt = 0

    async def asked() -> dict[str, float]:
        nonlocal prompt
        status, answer = await live.post("/v1/chat/completions", CHAT)
        assert status == 200
        prompt = answer["usage"]["prompt_tokens"]
        return await live.metrics()

    metrics = await metrics_once(
        asked, lambda seen: all(at("last_input_sequence_tokens", one) in seen for one in workers)
    )
    for worker in workers:
        assert metrics[at("last_input_sequence_tokens", worker)] == prompt
        assert metrics[at("last_time_to_first_token_seconds", worker)] > 0
        assert metrics[at("last_inter_token_latency_seconds", worker)] > 0
    workers[0].shutdown()
    metrics = await metrics_once(live.metrics, lambda seen: at("last_input_sequence_tokens", workers[0]) not in seen)
    assert at("last_input_sequence_tokens", workers[1]) in metrics


async def test_a_registered_model_is_ready_once_a_worker_serves_it(live: Live, folder: Path) -> None:
    ready = 'dynamo_frontend_model_ready{{model="{}"}}'
    await live.serve(Scripted().generate, toy_card(folder, "served"))
    async with DistributedRuntime(config=RuntimeConfig.in_process({}), local=live.local) as idle:
        await register_card(idle.endpoint("toy.idle.generate"), toy_card(folder, "registered"))
        metrics = await metrics_once(live.metrics, lambda seen: ready.format("registered") in seen)
        assert metrics[ready.format("registered")] == 0
        assert metrics[ready.format("served")] == 1
    await metrics_once(live.metrics, lambda seen: ready.format("registered") not in seen)
