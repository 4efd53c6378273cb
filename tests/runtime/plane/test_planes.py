"""What every request plane promises, over memory, TCP and NATS."""

from __future__ import annotations

import asyncio
import sys
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any

import pytest

from dynamo.protocols.engine import PreprocessedRequest, StopConditions
from dynamo.protocols.errors import (
    Cancelled,
    CannotConnect,
    DynamoException,
    EngineShutdown,
    HttpError,
    InvalidArgument,
    Unknown,
)
from dynamo.protocols.instance import Instance
from dynamo.runtime.context import Context
from dynamo.runtime.handler import GeneratorHandler
from dynamo.runtime.names import EndpointId
from dynamo.runtime.nats.config import NatsConfig
from dynamo.runtime.nats.connection import NatsConnection
from dynamo.runtime.plane.base import Channel, RequestPlane, route_path
from dynamo.runtime.plane.memory import MemoryHub, MemoryPlane
from dynamo.runtime.plane.nats import NatsPlane
from dynamo.runtime.plane.route import Route
from dynamo.runtime.plane.tcp import TcpConfig, TcpPlane
from dynamo.runtime.stream import Outlet
from support.services import Nats
from support.waiting import PATIENCE

ENDPOINT = EndpointId("ns", "comp", "ep")


class Collected:
    """A sink that remembers, and can be waited for."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.error: DynamoException | None = None
        self.done = asyncio.Event()
        self.arrived = asyncio.Event()

    def tokens(self, ids: list[int]) -> None:
        self.item(("tokens", ids))

    def item(self, value: Any) -> None:
        self.items.append(value)
        self.arrived.set()

    def end(self) -> None:
        assert not self.done.is_set()
        self.done.set()

    def fail(self, error: DynamoException) -> None:
        assert not self.done.is_set()
        self.error = error
        self.done.set()


class Pair:
    """A serving and a calling plane, as two processes would have them."""

    def __init__(self, server: RequestPlane, client: RequestPlane) -> None:
        self.server = server
        self.client = client
        self.route: Route | None = None

    async def serve(self, handler: Any, request_type: Any = Any) -> Channel:
        self.route = Route(route_path(ENDPOINT, 7), handler, request_type)
        address = await self.server.serve(self.route)
        instance = Instance(
            instance_id=7,
            namespace="ns",
            component="comp",
            endpoint="ep",
            transport=self.server.transport,
            address=address,
        )
        channel = self.client.channel(instance)
        await channel.open()
        return channel


@pytest.fixture(params=["memory", "tcp", "nats"])
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    connections: list[NatsConnection] = []
    planes: list[RequestPlane]
    match request.param:
        case "memory":
            hub = MemoryHub()
            planes = [MemoryPlane(hub), MemoryPlane(hub)]
        case "tcp":
            planes = [TcpPlane(TcpConfig()), TcpPlane(TcpConfig())]
        case _:
            nats: Nats = request.getfixturevalue("shared_nats")
            connections = [NatsConnection(NatsConfig(servers=(nats.url,))) for _ in range(2)]
            for connection in connections:
                await connection.start()
            planes = [NatsPlane(connection) for connection in connections]
    for plane in planes:
        await plane.start()
    yield Pair(*planes)
    for plane in reversed(planes):
        await plane.close()
    for connection in connections:
        await connection.close()


async def call(channel: Channel, request: Any, context: Context | None = None, **kwargs: Any) -> Collected:
    sink = Collected()
    channel.send(request, context or Context(), sink, **kwargs)
    async with asyncio.timeout(PATIENCE):
        await sink.done.wait()
    return sink


async def test_a_handlers_items_arrive_in_order_and_the_stream_ends(pair: Pair) -> None:
    async def count(request: Any) -> AsyncIterator[Any]:
        for number in range(request["to"]):
            yield {"number": number}

    channel = await pair.serve(GeneratorHandler(count))
    sink = await call(channel, {"to": 3})
    assert sink.items == [{"number": 0}, {"number": 1}, {"number": 2}]
    assert sink.error is None


@pytest.mark.parametrize(
    "value",
    [None, True, -1, 2**64 - 1, 1.5, "naïve 🦀", b"\x00\xff raw", [1, [2, {"k": None}]], {"a": {"b": b"x"}}, {}],
)
async def test_any_json_like_value_and_bytes_travel_both_ways(pair: Pair, value: Any) -> None:
    async def echo(request: Any) -> AsyncIterator[Any]:
        yield request

    assert (await call(await pair.serve(GeneratorHandler(echo)), value)).items == [value]


async def test_a_value_that_cannot_travel_is_refused_by_the_caller(pair: Pair) -> None:
    async def echo(request: Any) -> AsyncIterator[Any]:
        yield request

    sink = await call(await pair.serve(GeneratorHandler(echo)), object())
    assert isinstance(sink.error, InvalidArgument)


@pytest.mark.parametrize("prompt", [[], [0], [1, 2**32 - 1, 7] * 1000])
async def test_a_prompt_arrives_as_it_was_sent(pair: Pair, prompt: list[int]) -> None:
    got: list[PreprocessedRequest] = []

    def handle(request: PreprocessedRequest, context: Context, outlet: Outlet) -> None:
        got.append(request)
        outlet.end()

    sent = PreprocessedRequest(model="m", token_ids=prompt, stop_conditions=StopConditions(max_tokens=3))
    await call(await pair.serve(handle, PreprocessedRequest), sent)
    assert (list(got[0].token_ids), got[0].model, got[0].stop_conditions) == (prompt, "m", sent.stop_conditions)
    assert sent.token_ids == prompt


@pytest.mark.parametrize("kind", [list, partial(array, "I")])
async def test_a_users_handler_gets_a_prompt_as_a_list(pair: Pair, kind: Callable[[list[int]], Sequence[int]]) -> None:
    async def echo(request: Any) -> AsyncIterator[Any]:
        yield request

    sent = PreprocessedRequest(model="m", token_ids=kind([1, 2**32 - 1, 7]))
    (item,) = (await call(await pair.serve(GeneratorHandler(echo)), sent)).items
    assert (item["token_ids"], item["model"]) == ([1, 2**32 - 1, 7], "m")


async def test_columnar_readers_get_tokens_and_others_get_items(pair: Pair) -> None:
    async def tokens(request: Any) -> AsyncIterator[Any]:
        yield {"token_ids": [1], "text": None}
        await asyncio.sleep(0)
        yield {"token_ids": [2, 3]}
        yield {"token_ids": [4], "finish_reason": "stop"}

    channel = await pair.serve(GeneratorHandler(tokens))
    plain = await call(channel, None)
    assert [item["token_ids"] for item in plain.items] == [[1], [2, 3], [4]]
    columnar = await call(channel, None, columnar=True)
    assert columnar.items[-1] == {"token_ids": [4], "finish_reason": "stop"}
    assert [id for kind, ids in columnar.items[:-1] for id in ids if kind == "tokens"] == [1, 2, 3]


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (ValueError("bad value"), InvalidArgument("bad value")),
        (HttpError(415, "no such media"), HttpError(415, "no such media")),
        (RuntimeError("boom"), Unknown("boom")),
        (EngineShutdown("going"), EngineShutdown("going")),
    ],
)
async def test_what_a_handler_raises_arrives_typed(
    pair: Pair, raised: Exception, expected: DynamoException, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(request: Any) -> AsyncIterator[Any]:
        yield 1
        raise raised

    sink = await call(await pair.serve(GeneratorHandler(fails)), None)
    assert sink.items == [1]
    assert type(sink.error) is type(expected)
    assert sink.error.message == expected.message
    refused = isinstance(raised, DynamoException)
    logged = [record.exc_info[1] for record in caplog.records if record.levelname == "ERROR" and record.exc_info]
    assert logged == ([] if refused else [raised])


async def test_an_item_that_cannot_be_encoded_is_logged_as_an_error_of_the_handler(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    async def yields_an_object(request: Any) -> AsyncIterator[Any]:
        yield object()

    sink = await call(await pair.serve(GeneratorHandler(yields_an_object)), None)
    assert type(sink.error) is InvalidArgument
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.exc_info
    assert "request plane" in record.message


async def test_a_handler_that_cannot_be_called_is_logged_with_its_traceback(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    async def takes_nothing() -> AsyncIterator[Any]:
        yield 1

    sink = await call(await pair.serve(GeneratorHandler(takes_nothing)), None)
    assert type(sink.error) is InvalidArgument
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.exc_info
    assert "TypeError" in record.message
    assert "takes_nothing" in record.message


async def test_a_handler_that_exits_fails_its_request_and_not_the_server(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    async def exits(request: Any) -> AsyncIterator[Any]:
        if request == "exit":
            sys.exit(3)
        yield request

    channel = await pair.serve(GeneratorHandler(exits))
    assert str((await call(channel, "exit")).error) == "the handler called exit with status 3"
    assert "SystemExit" in caplog.text
    assert (await call(channel, "hello")).items == ["hello"]


async def test_a_killed_context_reaches_the_handler_and_fails_the_stream(pair: Pair) -> None:
    seen = asyncio.Event()

    async def waits(request: Any, context: Context) -> AsyncIterator[Any]:
        yield "started"
        await context.async_killed_or_stopped()
        assert context.is_killed()
        seen.set()

    channel = await pair.serve(GeneratorHandler(waits))
    sink, context = Collected(), Context("the-id")
    channel.send(None, context, sink)
    async with asyncio.timeout(PATIENCE):
        await sink.arrived.wait()
        context.kill()
        assert isinstance(sink.error, Cancelled)
        await seen.wait()
        assert pair.route
        await pair.route.drain(10)


async def test_a_stopped_context_lets_the_handler_finish_in_order(pair: Pair) -> None:
    async def waits(request: Any, context: Context) -> AsyncIterator[Any]:
        yield "started"
        await context.async_killed_or_stopped()
        yield "last words" if not context.is_killed() else "killed"

    channel = await pair.serve(GeneratorHandler(waits))
    sink, context = Collected(), Context()
    channel.send(None, context, sink)
    async with asyncio.timeout(PATIENCE):
        await sink.arrived.wait()
        context.stop_generating()
        await sink.done.wait()
    assert sink.items == ["started", "last words"]
    assert sink.error is None


async def test_a_handler_without_context_is_cancelled_where_it_stands(pair: Pair) -> None:
    entered, cancelled = asyncio.Event(), asyncio.Event()

    async def sleeps(request: Any) -> AsyncIterator[Any]:
        try:
            entered.set()
            await asyncio.Event().wait()
            yield None
        finally:
            cancelled.set()

    channel = await pair.serve(GeneratorHandler(sleeps))
    context = Context()
    channel.send(None, context, Collected())
    async with asyncio.timeout(PATIENCE):
        await entered.wait()
        context.kill()
        await cancelled.wait()


async def test_the_context_carries_id_metadata_and_trace(pair: Pair) -> None:
    async def tell(request: Any, context: Context) -> AsyncIterator[Any]:
        yield [context.id(), context.metadata, context.trace_id, context.parent_span_id]

    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    context = Context("request-1", {"tenant": "a"}, traceparent=trace)
    sink = await call(await pair.serve(GeneratorHandler(tell)), None, context)
    assert sink.items == [["request-1", {"tenant": "a"}, "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"]]


async def test_a_closed_route_refuses_what_is_new_and_finishes_what_runs(pair: Pair) -> None:
    go = asyncio.Event()

    async def waits(request: Any) -> AsyncIterator[Any]:
        yield "started"
        await go.wait()
        yield "finished"

    channel = await pair.serve(GeneratorHandler(waits))
    running = Collected()
    channel.send(None, Context(), running)
    async with asyncio.timeout(PATIENCE):
        await running.arrived.wait()
        assert pair.route
        pair.route.close()
        refused = await call(channel, None)
        assert isinstance(refused.error, EngineShutdown)
        assert channel.draining
        go.set()
        await running.done.wait()
    assert running.items == ["started", "finished"]


async def test_a_killed_route_tells_callers_that_it_leaves_and_handlers_that_nobody_listens(pair: Pair) -> None:
    told = asyncio.Event()

    async def ends_in_order(request: Any, context: Context) -> AsyncIterator[Any]:
        yield "started"
        await context.async_killed_or_stopped()
        told.set()

    channel = await pair.serve(GeneratorHandler(ends_in_order))
    sink = Collected()
    channel.send(None, Context(), sink)
    async with asyncio.timeout(PATIENCE):
        await sink.arrived.wait()
        assert pair.route
        pair.route.kill()
        await told.wait()
        await sink.done.wait()
    assert isinstance(sink.error, EngineShutdown)


async def test_closing_the_worker_fails_open_streams_with_a_typed_error(pair: Pair) -> None:
    async def waits(request: Any, context: Context) -> AsyncIterator[Any]:
        yield "started"
        await context.async_killed_or_stopped()

    channel = await pair.serve(GeneratorHandler(waits))
    sink = Collected()
    channel.send(None, Context(), sink)
    async with asyncio.timeout(PATIENCE):
        await sink.arrived.wait()
        await pair.server.close()
        await sink.done.wait()


async def test_what_cannot_be_sent_any_more_is_raised_and_the_sink_hears_nothing(pair: Pair) -> None:
    async def echo(request: Any) -> AsyncIterator[Any]:
        yield request

    channel = await pair.serve(GeneratorHandler(echo))
    await pair.client.close()
    if pair.server.transport == "memory":
        await pair.server.close()
    sink = Collected()
    with pytest.raises(CannotConnect):
        channel.send(None, Context(), sink)
    assert not sink.done.is_set()


async def test_a_thousand_streams_share_one_connection(pair: Pair) -> None:
    everyone = asyncio.Event()
    inside = 0

    async def wait_for_all(request: Any) -> AsyncIterator[Any]:
        nonlocal inside
        inside += 1
        if inside == 1000:
            everyone.set()
        await everyone.wait()
        yield request

    channel = await pair.serve(GeneratorHandler(wait_for_all))
    sinks = await asyncio.gather(*(call(channel, number) for number in range(1000)))
    assert [sink.items for sink in sinks] == [[number] for number in range(1000)]


async def test_a_request_that_does_not_fit_the_handlers_type_is_an_invalid_argument(pair: Pair) -> None:
    def never(request: Any, context: Context, outlet: Outlet) -> None:
        raise AssertionError("must not be called")

    sink = await call(await pair.serve(never, list[int]), {"not": "a list"})
    assert isinstance(sink.error, InvalidArgument)


async def test_an_item_that_does_not_fit_the_readers_type_fails_that_stream_only(pair: Pair) -> None:
    async def say(request: Any) -> AsyncIterator[Any]:
        yield request

    channel = await pair.serve(GeneratorHandler(say))
    wrong = await call(channel, "text", item_type=int)
    assert wrong.error is not None
    right = await call(channel, 5, item_type=int)
    assert right.items == [5]


class Breaking(Collected):
    """A reader whose own code fails, at every call."""

    def item(self, value: Any) -> None:
        raise RuntimeError("broken reader")

    def end(self) -> None:
        raise RuntimeError("broken reader")

    def fail(self, error: DynamoException) -> None:
        self.done.set()
        raise RuntimeError("broken reader")


async def test_a_reader_that_breaks_touches_no_other_stream(pair: Pair) -> None:
    go = asyncio.Event()

    async def say(request: Any) -> AsyncIterator[Any]:
        yield request
        await go.wait()
        yield request

    channel = await pair.serve(GeneratorHandler(say))
    healthy, broken = Collected(), Breaking()
    channel.send("fine", Context(), healthy)
    channel.send("x", Context(), broken)
    async with asyncio.timeout(PATIENCE):
        await healthy.arrived.wait()
        await broken.done.wait()
        go.set()
        await healthy.done.wait()
    assert healthy.items == ["fine", "fine"]
    assert healthy.error is None


async def test_a_reader_that_breaks_keeps_nobody_from_hearing_that_a_route_was_killed(pair: Pair) -> None:
    channel = await pair.serve(lambda request, context, outlet: None)
    healthy = Collected()
    channel.send(None, Context(), Breaking())
    channel.send(None, Context(), healthy)
    async with asyncio.timeout(PATIENCE):
        while not pair.route or pair.route.active < 2:
            await asyncio.sleep(0)
        pair.route.kill()
        await healthy.done.wait()
    assert isinstance(healthy.error, EngineShutdown)


async def test_an_instance_that_is_not_there_cannot_be_reached(pair: Pair) -> None:
    async def say(request: Any) -> AsyncIterator[Any]:
        yield request

    await pair.serve(GeneratorHandler(say))
    address = {"tcp": "127.0.0.1:1", "nats": "dynamo.requests.nobody", "memory": ""}[pair.client.transport]
    nobody = Instance(
        instance_id=8,
        namespace="ns",
        component="comp",
        endpoint="ep",
        transport=pair.client.transport,
        address=address,
    )
    channel = pair.client.channel(nobody)
    with pytest.raises(DynamoException) as caught:
        await channel.open()
    assert caught.value.migratable


async def test_a_path_that_is_not_served_has_left(pair: Pair) -> None:
    async def say(request: Any) -> AsyncIterator[Any]:
        yield request

    channel = await pair.serve(GeneratorHandler(say))
    if pair.client.transport == "memory":
        return
    assert pair.route
    other = Instance(
        instance_id=9,
        namespace="ns",
        component="comp",
        endpoint="ep",
        transport=pair.client.transport,
        address=await pair.server.serve(pair.route),
    )
    assert channel.ready
    strange = pair.client.channel(other)
    await strange.open()
    assert isinstance((await call(strange, None)).error, EngineShutdown)


async def test_endpoints_that_are_served_at_the_same_moment_are_all_reached(pair: Pair) -> None:
    def telling(name: str) -> GeneratorHandler:
        async def tell(request: Any) -> AsyncIterator[Any]:
            yield name

        return GeneratorHandler(tell)

    names = ["a", "b", "c"]
    routes = [Route(route_path(EndpointId("ns", "comp", name), 7), telling(name)) for name in names]
    addresses = await asyncio.gather(*(pair.server.serve(route) for route in routes))
    assert len(set(addresses)) == 1
    for name, address in zip(names, addresses, strict=True):
        channel = pair.client.channel(
            Instance(
                instance_id=7,
                namespace="ns",
                component="comp",
                endpoint=name,
                transport=pair.server.transport,
                address=address,
            )
        )
        await channel.open()
        assert (await call(channel, None)).items == [name]
