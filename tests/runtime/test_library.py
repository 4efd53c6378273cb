"""The library as engine authors use it: endpoints, clients, contexts, decorators."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest

from dynamo.llm.exceptions import HttpError, InvalidArgument, Unavailable
from dynamo.runtime import Context, DistributedRuntime, Endpoint, Local, RuntimeConfig, dynamo_endpoint, dynamo_worker
from support.waiting import PATIENCE, until


@pytest.fixture
async def local() -> Local:
    return Local()


def runtime(local: Local) -> DistributedRuntime:
    return DistributedRuntime(config=RuntimeConfig.in_process({}), local=local)


class Serving:
    """An endpoint served in the background until the block ends."""

    def __init__(self, endpoint: Endpoint, handler: Any, **options: Any) -> None:
        self.endpoint = endpoint
        self._task = asyncio.create_task(endpoint.serve_endpoint(handler, **options))

    async def __aenter__(self) -> Serving:
        client = await self.endpoint.client()
        await client.wait_for_instances()
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.endpoint.runtime.shutdown()
        await self._task
        await self.endpoint.runtime.close()


async def numbers(request: Any) -> AsyncIterator[Any]:
    for number in range(request):
        yield number


async def test_old_and_new_forms_name_the_same_endpoint(local: Local) -> None:
    async with runtime(local) as one:
        component = one.namespace("ns").component("comp")
        await component.create_service()
        assert component.endpoint("ep").id == one.endpoint("ns.comp.ep").id == one.endpoint("dyn://ns.comp.ep").id
        with pytest.raises(ValueError, match="namespace"):
            one.namespace("no spaces")
        with pytest.raises(ValueError, match="component"):
            one.namespace("ns").component("a/b")
        with pytest.raises(ValueError, match="endpoint"):
            component.endpoint("")


async def test_clients_reach_instances_in_turn_at_random_and_directly(local: Local) -> None:
    async def who(request: Any) -> AsyncIterator[Any]:
        yield request

    servers = [runtime(local) for _ in range(3)]

    def handler(id: int) -> Any:
        async def tell(request: Any) -> AsyncIterator[Any]:
            yield id

        return tell

    async with runtime(local) as caller:
        tasks = [
            asyncio.create_task(server.endpoint("a.b.c").serve_endpoint(handler(server.instance_id)))
            for server in servers
        ]
        client = await caller.endpoint("a.b.c").client()
        ids = {server.instance_id for server in servers}
        await until(lambda: set(client.instance_ids()) == ids)
        turns = [await anext(await client.round_robin(None, annotated=False)) for _ in range(6)]
        assert sorted(turns) == sorted([*ids, *ids])
        chosen = {await anext(await client.random(None, annotated=False)) for _ in range(60)}
        assert chosen == ids
        for id in ids:
            stream = await client.direct(None, id)
            assert [item.data() async for item in stream] == [id]
        with pytest.raises(Unavailable):
            await client.direct(None, 12345)
        for server in servers:
            server.shutdown()
        await asyncio.gather(*tasks)
        for server in servers:
            await server.close()


async def test_annotated_items_tell_data_events_and_errors(local: Local) -> None:
    async def mixed(request: Any) -> AsyncIterator[Any]:
        yield {"data": 1}
        yield {"event": "note", "comment": ["so"], "id": "7"}
        raise HttpError(415, "no")

    async with Serving(runtime(local).endpoint("a.b.c"), mixed) as serving:
        client = await serving.endpoint.client()
        stream = await client.generate(None)
        first, note = [await anext(stream), await anext(stream)]
        assert (first.data(), first.event(), first.is_error()) == ({"data": 1}, None, False)
        assert (note.event(), note.comments(), note.id()) == ("note", ["so"], "7")
        plain = await client.generate(None, annotated=False)
        assert await anext(plain) == {"data": 1}
        for failing in (stream, plain):
            with pytest.raises(HttpError) as caught:
                await anext(failing)
            assert isinstance(caught.value, ValueError)
            assert (caught.value.code, caught.value.message) == (415, "no")


async def forever(request: Any, context: Context) -> AsyncIterator[Any]:
    request_events[request].append(context)
    yield "begun"
    await context.async_killed_or_stopped()
    request_events[request].append("stopped")


request_events: dict[str, list[Any]] = {}


@pytest.mark.parametrize("way", ["aclose", "let go", "parent killed", "parent stopped"])
async def test_a_stream_nobody_reads_any_more_is_cancelled_at_the_worker(local: Local, way: str) -> None:
    seen = request_events[way] = []
    async with Serving(runtime(local).endpoint("a.b.c"), forever) as serving:
        client = await serving.endpoint.client()
        parent = Context("parent-id")
        stream = await client.generate(way, context=parent)
        assert (await anext(stream)).data() == "begun"
        assert seen[0].id() == "parent-id"
        match way:
            case "aclose":
                await stream.aclose()
            case "let go":
                del stream
                gc.collect()
            case "parent killed":
                parent.kill()
            case "parent stopped":
                parent.stop_generating()
        await until(lambda: seen[-1] == "stopped")
        assert seen[0].is_killed() == (way != "parent stopped")


class PydanticRequest(pydantic.BaseModel):
    text: str


class StructRequest(msgspec.Struct):
    text: str


@dataclass
class DataclassRequest:
    text: str


@pytest.mark.parametrize("model", [PydanticRequest, StructRequest, DataclassRequest])
@pytest.mark.parametrize("request_value", [{"text": "hi"}, '{"text": "hi"}'])
async def test_a_typed_endpoint_parses_its_requests(
    local: Local, model: Any, request_value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Handler:
        @dynamo_endpoint(model, str)
        async def generate(self, request: Any) -> AsyncIterator[Any]:
            assert isinstance(request, model)
            yield request.text

    async with Serving(runtime(local).endpoint("a.b.c"), Handler().generate) as serving:
        client = await serving.endpoint.client()
        assert [item.data() async for item in await client.generate(request_value)] == ["hi"]
        with pytest.raises(InvalidArgument):
            await anext(await client.generate({"txet": 1}))
        assert not [record for record in caplog.records if record.levelname == "ERROR"], "the caller was wrong"


async def test_an_endpoint_can_be_hidden_and_shown_again(local: Local) -> None:
    async with Serving(runtime(local).endpoint("a.b.c"), numbers) as serving, runtime(local) as caller:
        client = await caller.endpoint("a.b.c").client()
        assert len(client.instance_ids()) == 1
        await serving.endpoint.unregister_endpoint_instance()
        await until(lambda: not client.instance_ids())
        await serving.endpoint.register_endpoint_instance()
        async with asyncio.timeout(PATIENCE):
            await client.wait_for_instances()


async def test_ten_thousand_requests_leave_no_task_descriptor_or_object_behind(tmp_path: Any) -> None:
    config = RuntimeConfig.from_env({"DYN_FILE_KV": str(tmp_path / "kv")})
    server, caller = DistributedRuntime(config=config), DistributedRuntime(config=config)
    serving = asyncio.create_task(server.endpoint("a.b.c").serve_endpoint(numbers))
    client = await caller.endpoint("a.b.c").client()
    await client.wait_for_instances()

    async def ask(count: int) -> None:
        for _ in range(count // 50):
            streams = [await client.generate(2, annotated=False) for _ in range(50)]
            assert [[item async for item in stream] for stream in streams] == [[0, 1]] * 50

    def census() -> tuple[int, int, int]:
        gc.collect()
        return len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd")), len(gc.get_objects())

    await ask(500)
    before = census()
    await ask(10_000)
    # Discovery opens files in a thread meanwhile.
    await until(lambda: census()[:2] == before[:2])
    assert census()[2] - before[2] < 1000
    server.shutdown()
    await serving
    await server.close()
    await caller.close()


def test_a_parameter_that_has_no_effect_any_more_is_accepted_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="enable_nats"):
        DistributedRuntime(enable_nats=True, config=RuntimeConfig.in_process({}))
    with pytest.warns(DeprecationWarning, match="enable_nats"):
        dynamo_worker(enable_nats=False)
