"""What only a socket can show: foreign bytes, wrong tokens, and one bad connection among good ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dynamo.protocols.engine import PreprocessedRequest
from dynamo.protocols.errors import CannotConnect, EngineShutdown, InvalidArgument
from dynamo.protocols.instance import Instance
from dynamo.runtime import Context
from dynamo.runtime.client import Inbox
from dynamo.runtime.config import RuntimeConfig
from dynamo.runtime.handler import GeneratorHandler
from dynamo.runtime.names import EndpointId
from dynamo.runtime.plane.base import Channel, PlaneError, route_path
from dynamo.runtime.plane.frames import FrameDecoder, Hello, Kind, Request, encode_payload, frame
from dynamo.runtime.plane.route import Route
from dynamo.runtime.plane.server_link import ServerLink
from dynamo.runtime.plane.tcp import TcpConfig, TcpPlane
from support.waiting import PATIENCE


async def echo(request: Any) -> AsyncIterator[Any]:
    yield request


def routed(handler: Any) -> Route:
    return Route(route_path(EndpointId("a", "b", "c"), 1), GeneratorHandler(handler))


async def serve(plane: TcpPlane, route: Route | None = None) -> Instance:
    address = await plane.serve(route or routed(echo))
    return Instance(instance_id=1, namespace="a", component="b", endpoint="c", transport="tcp", address=address)


async def answer(channel: Channel, request: Any) -> Any:
    inbox = Inbox(None)
    channel.send(request, Context(), inbox)
    async with asyncio.timeout(PATIENCE):
        return (await inbox.next()).data()


async def until_closed(address: str, data: bytes) -> None:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    writer.write_eof()
    async with asyncio.timeout(PATIENCE):
        await reader.read()
    writer.close()
    await writer.wait_closed()


async def test_foreign_bytes_close_their_connection_and_touch_no_other(caplog: pytest.LogCaptureFixture) -> None:
    server, client = TcpPlane(TcpConfig()), TcpPlane(TcpConfig())
    instance = await serve(server)
    channel = client.channel(instance)
    await channel.open()
    await until_closed(instance.address, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert "closing the connection" in caplog.text
    assert await answer(channel, "still fine") == "still fine"
    await client.close()
    await server.close()


@pytest.mark.parametrize(("request_", "tokens"), [({}, b"\1\2\3"), ("no map", b"\1\2\3\4")])
async def test_a_prompt_that_cannot_be_read_fails_its_stream_alone(request_: Any, tokens: bytes) -> None:
    told: list[bytes] = []
    route = routed(echo)
    link = ServerLink(told.append, "someone", {route.path: route}, beat=60.0)
    link.feed(frame(Kind.HELLO, Hello()))
    link.feed(frame(Kind.REQUEST, Request(1, route.path, "id", encode_payload(request_), tokens=tokens)))
    link.flush()
    (_, (kind, error)) = FrameDecoder().feed(b"".join(told))
    assert (kind, error.stream, error.kind) == (Kind.ERROR, 1, "invalid_argument")
    assert not link.lost


async def test_what_is_no_token_id_is_refused_where_it_is_read() -> None:
    server, client = TcpPlane(TcpConfig()), TcpPlane(TcpConfig())
    route = Route(route_path(EndpointId("a", "b", "c"), 1), GeneratorHandler(echo), PreprocessedRequest)
    channel = client.channel(await serve(server, route))
    await channel.open()
    inbox = Inbox(None)
    channel.send(PreprocessedRequest(token_ids=["a"]), Context(), inbox)  # type: ignore[list-item]
    async with asyncio.timeout(PATIENCE):
        answered = await inbox.next()
    assert isinstance(answered.exception, InvalidArgument)
    await client.close()
    await server.close()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(min_size=1, max_size=200))
def test_whatever_a_stranger_sends_the_worker_serves_on(data: bytes) -> None:
    async def run() -> None:
        server, client = TcpPlane(TcpConfig()), TcpPlane(TcpConfig())
        instance = await serve(server)
        await until_closed(instance.address, data)
        channel = client.channel(instance)
        await channel.open()
        assert await answer(channel, 1) == 1
        await client.close()
        await server.close()

    asyncio.run(run())


async def test_a_wrong_token_cannot_connect() -> None:
    server, client = TcpPlane(TcpConfig(token="right")), TcpPlane(TcpConfig(token="wrong"))
    instance = await serve(server)
    with pytest.raises(CannotConnect, match="token"):
        await client.channel(instance).open()
    friend = TcpPlane(TcpConfig(token="right"))
    channel = friend.channel(instance)
    await channel.open()
    assert await answer(channel, 2) == 2
    for plane in (friend, client, server):
        await plane.close()


async def test_a_taken_port_is_told_with_the_fix() -> None:
    first = TcpPlane(TcpConfig())
    instance = await serve(first)
    port = int(instance.address.rpartition(":")[2])
    second = TcpPlane(TcpConfig(port=port))
    with pytest.raises(PlaneError, match=f"{port} is already in use; set DYN_TCP_RPC_PORT"):
        await serve(second)
    await second.close()
    await first.close()


async def test_a_worker_that_said_it_leaves_and_left_has_refused_what_it_did_not_answer() -> None:
    started = asyncio.Event()

    async def silent(request: Any, context: Context) -> AsyncIterator[Any]:
        started.set()
        await context.async_killed_or_stopped()
        yield "too late"

    server, client = TcpPlane(TcpConfig()), TcpPlane(TcpConfig())
    route = routed(silent)
    channel = client.channel(await serve(server, route))
    await channel.open()
    inbox = Inbox(None)
    channel.send(None, Context(), inbox)
    async with asyncio.timeout(PATIENCE):
        await started.wait()
        route.close()
        while not channel.draining:
            await asyncio.sleep(0)
        await server.close()
        assert isinstance((await inbox.next()).exception, EngineShutdown)
    await client.close()


@pytest.mark.parametrize("port", ["-1", "70000", "eighty"])
def test_a_port_that_is_none_is_refused_by_name(port: str) -> None:
    with pytest.raises(ValueError, match="DYN_TCP_RPC_PORT"):
        RuntimeConfig.from_env({"DYN_TCP_RPC_PORT": port})


def test_without_an_address_local_planes_stay_on_loopback() -> None:
    assert RuntimeConfig.from_env({}).tcp.host == "127.0.0.1"
    assert RuntimeConfig.from_env({"DYN_TCP_RPC_HOST": "0.0.0.0"}).tcp.host == "0.0.0.0"
    environ = {"DYN_TCP_RPC_PORT": "7001", "DYN_PLANE_TOKEN": "secret"}
    assert RuntimeConfig.from_env(environ).tcp == TcpConfig(port=7001, token="secret")
