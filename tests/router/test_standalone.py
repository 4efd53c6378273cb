"""The router without a frontend delivers as a frontend does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import structs

from dynamo.protocols.engine import EngineOutput, PreprocessedRequest
from dynamo.protocols.errors import Cancelled, CannotConnect, DynamoException, EngineShutdown, Unavailable
from dynamo.router import RoutingConfig
from dynamo.router.standalone.service import serve_router
from dynamo.router.standalone.standalone import StandaloneRouter
from dynamo.runtime import Context, DistributedRuntime, Local
from dynamo.runtime.client import Client
from dynamo.runtime.status import StatusConfig
from support.scripted import BLOCK, GENERATE, ScriptedWorker, asking, network
from support.waiting import until


class Reader:
    def __init__(self) -> None:
        self.context = Context()
        self.outputs: list[EngineOutput] = []
        self.error: DynamoException | None = None
        self.some = asyncio.Event()
        self.done = asyncio.Event()

    def tokens(self, ids: list[int]) -> None:
        self.item(EngineOutput(token_ids=ids))

    def item(self, value: EngineOutput) -> None:
        self.outputs.append(value)
        self.some.set()

    def end(self) -> None:
        self.done.set()

    def fail(self, error: DynamoException) -> None:
        self.error = error
        self.done.set()


@asynccontextmanager
async def standing(local: Local, workers: int) -> AsyncIterator[StandaloneRouter]:
    """A router that knows this number of workers, with a status port."""
    config = structs.replace(network("memory"), status=StatusConfig(port=0, host="127.0.0.1"))
    async with DistributedRuntime(config=config, local=local) as runtime:
        router = StandaloneRouter(runtime, GENERATE, RoutingConfig(mode="kv"), BLOCK)
        await router.start()
        try:
            await until(lambda: len(router.core.instances) == workers)
            yield router
        finally:
            await router.close()


def loses_its_connection(router: StandaloneRouter, worker: ScriptedWorker) -> None:
    """Its channel seems open, and sending finds the connection gone."""

    def send(*_: Any, **__: Any) -> None:
        raise CannotConnect("the connection is gone")

    channel: Any = router.core.instances.channel(worker.id)
    channel.send = send


async def send(router: StandaloneRouter, request: PreprocessedRequest) -> Reader:
    reader = Reader()
    await router.send(request, reader.context, reader)
    return reader


def prefill(router: StandaloneRouter) -> int:
    return sum(load.prefill_tokens for load in router.core.loads())


async def test_text_without_token_ids_says_that_the_prompt_is_computed() -> None:
    local = Local()
    async with ScriptedWorker(local, hold=True) as worker, standing(local, 1) as router:
        reader = await send(router, asking("ABC"))
        assert prefill(router) == 3 * BLOCK
        held = await worker.held.get()
        held.outlet.item(EngineOutput(text="Hello"))
        await reader.some.wait()
        assert (prefill(router), router.core.active) == (0, 1)
        held.outlet.end()
        await reader.done.wait()
        assert router.core.active == 0


async def test_a_worker_whose_connection_is_gone_is_passed_over_and_the_next_one_serves() -> None:
    local = Local()
    async with ScriptedWorker(local) as one, ScriptedWorker(local) as two, standing(local, 2) as router:
        loses_its_connection(router, one)
        for _ in range(4):
            reader = await send(router, asking("ABC"))
            await reader.done.wait()
            assert reader.error is None
        assert (len(one.requests), len(two.requests)) == (0, 4)
        assert router.core.active == 0


async def test_a_worker_that_refuses_is_passed_over_and_the_next_one_serves() -> None:
    local = Local()
    async with (
        ScriptedWorker(local, hold=True) as one,
        ScriptedWorker(local, hold=True) as two,
        standing(local, 2) as router,
    ):
        reader = await send(router, asking("ABC"))
        first, second = (one, two) if one.requests else (two, one)
        first.held.get_nowait().outlet.fail(EngineShutdown("draining"))
        (await second.held.get()).answer()
        await reader.done.wait()
        assert reader.error is None
        assert router.core.active == 0


async def test_a_caller_that_leaves_while_its_request_waits_for_another_worker_is_told() -> None:
    local = Local()
    async with ScriptedWorker(local, hold=True) as one, ScriptedWorker(local) as two, standing(local, 2) as router:
        opening = asyncio.Event()

        class Opening:
            """A connection that never comes."""

            ready = draining = False

            async def open(self) -> None:
                opening.set()
                await asyncio.Event().wait()

        router.core.instances._channels[two.id] = Opening()  # type: ignore[assignment]
        router.core.instances.inhibit(two.id)
        reader = await send(router, asking("ABC"))
        (await one.held.get()).outlet.fail(EngineShutdown("draining"))
        await opening.wait()
        reader.context.kill()
        await reader.done.wait()
        assert isinstance(reader.error, Cancelled)
        assert router.core.active == 0


async def test_nobody_reachable_is_unavailable() -> None:
    local = Local()
    async with ScriptedWorker(local) as worker, standing(local, 1) as router:
        loses_its_connection(router, worker)
        with pytest.raises(Unavailable, match="can be reached: the connection is gone"):
            await send(router, asking("ABC"))
        assert router.core.active == 0


@asynccontextmanager
async def service(local: Local, workers: int) -> AsyncIterator[tuple[StandaloneRouter, Client]]:
    """The router as an endpoint, and a client of it."""
    async with standing(local, workers) as router:
        host = router._runtime
        serving = asyncio.create_task(serve_router(host, "test", router))
        async with DistributedRuntime(config=network("memory"), local=local) as caller:
            client = await caller.endpoint("test.router.generate").client()
            await client.wait_for_instances()
            yield router, client
        host.shutdown()
        await serving


async def answer(client: Client, **routing: Any) -> list[Any]:
    request = {"token_ids": [1, 2, 3, 4], "stop_conditions": {"max_tokens": 3}, "routing": routing}
    return [item async for item in await client.random(request, annotated=False)]


async def test_what_it_counts_is_among_the_metrics_of_its_process() -> None:
    local = Local()
    async with ScriptedWorker(local) as worker, service(local, 1) as (router, client):
        assert await answer(client)
        status = router._runtime.status
        assert status
        families = {family.name: family.samples for family in status.metrics()}
        labels = {"model": "", "router_id": str(router._runtime.instance_id)}
        for name in ("requests", "requests_started"):
            [sample] = families[f"dynamo_component_router_{name}"]
            assert (sample.labels, sample.value) == (labels, 1)
        [registered] = families["dynamo_component_router_worker_registered"]
        assert registered.labels["router_worker_id"] == str(worker.id)
        assert families["dynamo_component_kv_cache_events_applied"]
        assert families["dynamo_component_requests"]


async def test_an_unreachable_worker_is_not_reported_as_an_unreachable_router() -> None:
    local = Local()
    async with ScriptedWorker(local) as one, ScriptedWorker(local) as two, service(local, 2) as (router, client):
        loses_its_connection(router, one)
        for _ in range(4):
            assert await answer(client)
        assert len(two.requests) == 4
        with pytest.raises(Unavailable, match="the connection is gone"):
            await answer(client, backend_instance_id=one.id)
        loses_its_connection(router, two)
        with pytest.raises(Unavailable, match="can be reached"):
            await answer(client)
        assert router.core.active == 0
