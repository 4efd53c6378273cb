"""Where a request is on its way, and how long each part of it took."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from dynamo.llm import ModelType
from dynamo.protocols.errors import Disconnected
from dynamo.router import RoutingConfig
from dynamo.router.stats import EVERY
from support.serving import MODEL, Holding, serving
from support.toys import Live, embed_tokens, metrics_once, toy_card

STAGE = 'dynamo_frontend_stage_duration_seconds_{}{{stage="{}"}}'
INSIDE = 'dynamo_frontend_stage_requests{{phase="{}",stage="{}"}}'
MOVED = 'dynamo_frontend_model_migration_duration_seconds_count{{migration_type="{}",model="tiny",outcome="{}"}}'
INFLIGHT = "dynamo_request_plane_inflight_requests"
WAITING = 'dynamo_frontend_router_queue_pending_{}{{model="tiny"}}'


async def test_the_parts_of_a_request_are_timed(tmp_path: Path) -> None:
    engine = Holding()
    async with serving(tmp_path, engine) as stack:
        asking = asyncio.create_task(stack.chat())
        held = await engine.requests.get()
        before = await stack.metrics()
        held.sink.tokens([100])
        during = await stack.metrics()
        held.sink.end()
        assert (await asking).status == 200
        after = await stack.metrics()
    for name in (
        STAGE.format("count", "preprocess"),
        STAGE.format("count", "route"),
        STAGE.format("count", "transport_roundtrip"),
        "dynamo_request_plane_roundtrip_ttft_seconds_count",
    ):
        assert (before[name], during[name], after[name]) == (0, 1, 1), name
        assert after[name.replace("_count", "_sum")] > 0
    parts = sum(after[STAGE.format("sum", stage)] for stage in ("preprocess", "route", "transport_roundtrip"))
    assert parts < after['dynamo_frontend_time_to_first_token_seconds_sum{model="tiny"}']


async def test_a_prompts_template_and_tokens_are_timed(tmp_path: Path) -> None:
    async with serving(tmp_path) as stack:
        before = await stack.metrics()
        assert (await stack.chat()).status == 200
        after = await stack.metrics()
    for name in (
        "dynamo_frontend_template_seconds_count",
        "dynamo_frontend_tokenize_seconds_count",
        'dynamo_frontend_tokenizer_latency_ms_count{operation="tokenize"}',
    ):
        assert (before[name], after[name]) == (0, 1), name
        assert after[name.replace("_count", "_sum")] > 0
    seconds = after["dynamo_frontend_tokenize_seconds_sum"]
    assert after['dynamo_frontend_tokenizer_latency_ms_sum{operation="tokenize"}'] == seconds * 1000
    assert 'dynamo_frontend_tokenizer_latency_ms_bucket{le="512.0",operation="tokenize"}' in after


async def test_every_prompt_of_a_completion_is_tokenised_and_none_rendered(tmp_path: Path) -> None:
    async with serving(tmp_path) as stack:
        body = {"model": MODEL, "prompt": ["one", "two", "three"], "max_tokens": 1}
        async with stack.http.post(f"{stack.url}/v1/completions", json=body) as answer:
            assert answer.status == 200
        metrics = await stack.metrics()
    assert metrics["dynamo_frontend_tokenize_seconds_count"] == 3
    assert metrics["dynamo_frontend_template_seconds_count"] == 0
    assert metrics[STAGE.format("count", "preprocess")] == 1
    assert metrics[STAGE.format("count", "route")] == 1


async def test_a_request_is_in_one_stage_until_its_first_token(tmp_path: Path) -> None:
    engine = Holding()
    async with serving(tmp_path, engine) as stack:
        preprocessor = stack.server.models.get(MODEL).preprocessor
        assert preprocessor
        tokenizer = preprocessor.model.tokenizer
        encode, reached, go_on = tokenizer.encode_async, asyncio.Event(), asyncio.Event()

        async def slowly(text: str, add_special_tokens: bool = False) -> list[int]:
            reached.set()
            await go_on.wait()
            return await encode(text, add_special_tokens)

        tokenizer.encode_async = slowly  # type: ignore[method-assign]
        asking = asyncio.create_task(stack.chat())
        await reached.wait()
        metrics = await stack.metrics()
        assert metrics[INSIDE.format("", "preprocess")] == 1
        assert metrics[INSIDE.format("aggregated", "dispatch")] == metrics[INFLIGHT] == 0

        go_on.set()
        held = await engine.requests.get()
        metrics = await stack.metrics()
        assert metrics[INSIDE.format("", "preprocess")] == 0
        assert metrics[INSIDE.format("aggregated", "dispatch")] == metrics[INFLIGHT] == 1

        held.sink.tokens([100])
        metrics = await stack.metrics()
        assert metrics[INSIDE.format("aggregated", "dispatch")] == 0
        assert metrics[INFLIGHT] == 1

        held.sink.end()
        assert (await asking).status == 200
        assert (await stack.metrics())[INFLIGHT] == 0


async def test_a_request_that_waits_for_a_worker_is_in_the_routers_queue(tmp_path: Path) -> None:
    engine = Holding()
    router = RoutingConfig(mode="kv", queue_threshold=0.0, queue_limit=1)
    async with serving(tmp_path, engine, router=router) as stack:
        first = asyncio.create_task(stack.chat())
        held = await engine.requests.get()
        second = asyncio.create_task(stack.chat())
        metrics = await metrics_once(stack.metrics, lambda seen: seen[WAITING.format("requests")] == 1)
        assert metrics[WAITING.format("isl_tokens")] == len(held.request.token_ids)
        assert metrics[INSIDE.format("aggregated", "route")] == 1
        full = 'dynamo_frontend_router_queue_backpressure_total{model="tiny",reason="request_limit"}'
        assert metrics[full] == 0

        assert (await stack.chat()).status == 503
        assert (await stack.metrics())[full] == 1

        held.sink.tokens([100])
        held.sink.end()
        (await engine.requests.get()).sink.end()
        assert [(await one).status for one in (first, second)] == [200, 200]
        metrics = await stack.metrics()
        assert metrics[WAITING.format("isl_tokens")] == metrics[INSIDE.format("aggregated", "route")] == 0


async def test_the_cost_of_every_eighth_choice_by_caches_is_measured_in_parts(tmp_path: Path) -> None:
    async with serving(tmp_path, router=RoutingConfig(mode="kv")) as stack:
        for _ in range(EVERY + 1):
            assert (await stack.chat()).status == 200
        metrics = await stack.metrics()
        labels = f'{{model="tiny",router_id="{stack.runtime.instance_id}"}}'
    parts = ("block_hashing", "indexer_find_matches", "scheduling")
    for part in (*parts, "total"):
        assert metrics[f"dynamo_router_overhead_{part}_ms_count{labels}"] == 2
    sums = [metrics[f"dynamo_router_overhead_{part}_ms_sum{labels}"] for part in (*parts, "total")]
    assert all(sums)
    assert abs(sum(sums[:3]) - sums[3]) < 1e-9


async def test_moves_are_timed_by_how_they_end(tmp_path: Path) -> None:
    engine = Holding()
    async with serving(tmp_path, engine, workers=3, card={"migration_limit": 2}) as stack:
        asking = asyncio.create_task(stack.chat())
        (await engine.requests.get()).sink.fail(Disconnected("gone"))
        second = await engine.requests.get()
        second.sink.tokens([100])
        second.sink.fail(Disconnected("gone"))
        (await engine.requests.get()).sink.fail(Disconnected("gone"))
        assert (await asking).status == 502
        metrics = await stack.metrics()
        assert metrics[MOVED.format("new_request", "success")] == 1
        assert metrics[MOVED.format("ongoing_request", "failure")] == 1

        asking = asyncio.create_task(stack.chat())
        (await engine.requests.get()).sink.fail(Disconnected("gone"))
        held = await engine.requests.get()
        asking.cancel()
        await held.cancelled.wait()
        assert (await stack.metrics())[MOVED.format("new_request", "cancelled")] == 1


async def test_embeddings_have_a_latency_of_their_own(live: Live, folder: Path) -> None:
    await live.serve(embed_tokens, toy_card(folder, "vectors", ModelType.Embedding))
    assert (await live.post("/v1/embeddings", {"model": "vectors", "input": "hello"}))[0] == 200
    metrics = await live.metrics()
    assert metrics['dynamo_frontend_embedding_latency_seconds_count{model="vectors"}'] == 1
    assert metrics['dynamo_frontend_embedding_latency_seconds_sum{model="vectors"}'] > 0


async def test_a_loop_that_stands_still_is_counted(live: Live) -> None:
    count, stalls = "dynamo_frontend_event_loop_delay_seconds_count", "dynamo_frontend_event_loop_stall_total"
    before = (await metrics_once(live.metrics, lambda seen: seen[count] > 0))[stalls]
    time.sleep(0.3)
    await metrics_once(live.metrics, lambda seen: seen[stalls] > before)
