"""Requests that outlast the drain are ended with an error that the client can read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dynamo.protocols.card import ModelRuntimeConfig
from dynamo.router import RoutingConfig
from support.serving import Holding, serving
from support.waiting import PATIENCE, until


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_that_outlasts_the_drain_gets_an_error(tmp_path: Path, stream: bool) -> None:
    engine = Holding()
    async with (
        asyncio.timeout(PATIENCE),
        serving(tmp_path, engine, graceful_shutdown_timeout=0.05) as stack,
    ):
        asking = asyncio.create_task(stack.chat(stream=stream))
        held = await engine.requests.get()
        held.sink.tokens([65])
        answer = await asking if stream else None
        stack.runtime.shutdown()
        await stack.server.serve()
        answer = answer or await asking
        text = await answer.text()
        assert answer.status == (200 if stream else 503)
        assert "The service shut down before the answer was complete." in text
        await held.cancelled.wait()


async def test_a_request_that_still_waits_in_the_router_gets_an_error_too(tmp_path: Path) -> None:
    engine = Holding()
    sized = {"kv_cache_block_size": 16, "runtime_config": ModelRuntimeConfig(max_num_batched_tokens=16)}
    queueing = RoutingConfig(mode="kv", use_kv_events=False, queue_threshold=0)
    async with (
        asyncio.timeout(PATIENCE),
        serving(tmp_path, engine, graceful_shutdown_timeout=0.05, router=queueing, card=sized) as stack,
    ):
        asking = [asyncio.create_task(stack.chat()) for _ in range(2)]

        async def one_waits() -> bool:
            metrics = await stack.metrics()
            return metrics['dynamo_frontend_router_queue_pending_requests{model="tiny"}'] == 1

        await until(one_waits)
        stack.runtime.shutdown()
        await stack.server.serve()
        for answer in await asyncio.gather(*asking):
            assert answer.status == 503
            assert "The service shut down before the answer was complete." in await answer.text()
