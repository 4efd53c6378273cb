"""Streams that outlive their connection, over TCP and NATS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dynamo.protocols.engine import EngineOutput, PreprocessedRequest
from dynamo.protocols.errors import Cancelled, DynamoException, EngineShutdown, NotFound
from dynamo.protocols.instance import Instance
from dynamo.protocols.streams import StreamClaim, StreamFacts
from dynamo.runtime.context import Context
from dynamo.runtime.names import EndpointId
from dynamo.runtime.nats.config import NatsConfig
from dynamo.runtime.nats.connection import NatsConnection
from dynamo.runtime.plane.base import Channel, RequestPlane, route_path
from dynamo.runtime.plane.kept import KeepLimits
from dynamo.runtime.plane.nats import NatsPlane
from dynamo.runtime.plane.route import Route
from dynamo.runtime.plane.tcp import TcpConfig, TcpPlane
from dynamo.runtime.stream import FirstAnswer, Outlet
from support.services import Nats
from support.waiting import PATIENCE, until

ENDPOINT = EndpointId("ns", "comp", "ep")
CLAIM = StreamClaim("digest", "owner", facts=b"what the frontend said")


class Reader:
    """A sink that joins tokens, however they were grouped on their way."""

    def __init__(self) -> None:
        self.read: list[Any] = []
        self.error: DynamoException | None = None
        self.done = asyncio.Event()

    def tokens(self, ids: list[int]) -> None:
        self.read += ids

    def item(self, value: Any) -> None:
        self.read.append(value)

    def end(self) -> None:
        self.done.set()

    def fail(self, error: DynamoException) -> None:
        self.error = error
        self.done.set()

    async def ended(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self.done.wait()


class Worker:
    """A handler whose stream the test writes, and one frontend after the other that reads it."""

    def __init__(self, kind: str, nats: Nats | None) -> None:
        self.requests: asyncio.Queue[tuple[Any, Context, Outlet]] = asyncio.Queue()
        self._kind = kind
        self._nats = nats
        self._planes: list[RequestPlane] = []
        self._connections: list[NatsConnection] = []
        self.route: Route

    async def plane(self) -> RequestPlane:
        plane: RequestPlane = TcpPlane(TcpConfig())
        if self._nats:
            connection = NatsConnection(NatsConfig(servers=(self._nats.url,)))
            await connection.start()
            self._connections.append(connection)
            plane = NatsPlane(connection)
        await plane.start()
        self._planes.append(plane)
        return plane

    async def serve(self, limits: KeepLimits) -> None:
        def handle(request: Any, context: Context, outlet: Outlet) -> None:
            self.requests.put_nowait((request, context, outlet))

        server = await self.plane()
        self.route = Route(route_path(ENDPOINT, 7), handle, PreprocessedRequest, keep=limits)
        self.instance = Instance(
            instance_id=7, namespace="ns", component="comp", endpoint="ep", transport=server.transport,
            address=await server.serve(self.route),
        )  # fmt: skip

    async def frontend(self) -> Frontend:
        plane = await self.plane()
        channel = plane.channel(self.instance)
        await channel.open()
        return Frontend(plane, channel)

    async def close(self) -> None:
        for plane in reversed(self._planes):
            await plane.close()
        for connection in self._connections:
            await connection.close()


class Frontend:
    def __init__(self, plane: RequestPlane, channel: Channel) -> None:
        self.plane = plane
        self.channel = channel

    def ask(self, claim: StreamClaim = CLAIM, request: PreprocessedRequest | None = None) -> tuple[Reader, Context]:
        context, reader = Context(), Reader()
        context.claim = claim
        asked = request or PreprocessedRequest(token_ids=[1, 2, 3])
        self.channel.send(asked, context, reader, item_type=EngineOutput, columnar=True)
        return reader, context

    def attach(self) -> Reader:
        context, reader = Context(), Reader()
        context.claim = StreamClaim(CLAIM.id, CLAIM.owner, "attach")
        self.channel.send(None, context, reader, item_type=EngineOutput, columnar=True)
        return reader

    async def describe(self) -> StreamFacts:
        context, answer = Context(), FirstAnswer()
        context.claim = StreamClaim(CLAIM.id, CLAIM.owner, "describe")
        self.channel.send(None, context, answer, item_type=StreamFacts)
        async with asyncio.timeout(PATIENCE):
            facts: StreamFacts = await answer.value
        return facts


@pytest.fixture(params=["tcp", "nats"])
async def worker(request: pytest.FixtureRequest) -> AsyncIterator[Worker]:
    nats = request.getfixturevalue("shared_nats") if request.param == "nats" else None
    worker = Worker(request.param, nats)
    yield worker
    await worker.close()


async def test_whoever_attaches_reads_all_from_the_first_token_and_on(worker: Worker) -> None:
    await worker.serve(KeepLimits())
    first = await worker.frontend()
    reader, _ = first.ask()
    _, context, outlet = await worker.requests.get()
    outlet.tokens([10, 11])
    outlet.item(EngineOutput(token_ids=[12], log_probs=[-0.5]))
    await until(lambda: len(reader.read) == 3)
    await first.plane.close()
    outlet.tokens([13])
    second = await worker.frontend()
    assert await second.describe() == StreamFacts(CLAIM.facts)
    again = second.attach()
    await until(lambda: len(again.read) == 4)
    outlet.tokens([14])
    outlet.end()
    await again.ended()
    assert again.error is None
    assert again.read == [10, 11, EngineOutput(token_ids=[12], log_probs=[-0.5]), 13, 14]
    assert worker.requests.empty()
    assert not context.is_stopped()
    assert worker.route.active == 0


async def test_a_caller_that_cancels_ends_the_stream_at_once_for_everybody(worker: Worker) -> None:
    await worker.serve(KeepLimits())
    frontend = await worker.frontend()
    reader, context = frontend.ask()
    _, there, outlet = await worker.requests.get()
    context.kill()
    await there.async_killed_or_stopped()
    assert there.is_killed()
    outlet.fail(Cancelled("request was cancelled"))
    await reader.ended()
    with pytest.raises(NotFound):
        await frontend.describe()
    late = frontend.attach()
    await late.ended()
    assert isinstance(late.error, EngineShutdown)


async def test_a_stream_that_nobody_comes_to_read_is_ended(worker: Worker) -> None:
    await worker.serve(KeepLimits(seconds=0.05))
    frontend = await worker.frontend()
    frontend.ask()
    _, there, outlet = await worker.requests.get()
    await frontend.plane.close()
    await there.async_killed_or_stopped()
    assert there.is_killed()
    outlet.fail(Cancelled("request was cancelled"))
    assert worker.route.active == 0
    assert worker.route.kept is not None
    assert len(worker.route.kept) == 0


async def test_without_a_claim_a_lost_caller_is_one_that_has_left(worker: Worker) -> None:
    await worker.serve(KeepLimits())
    frontend = await worker.frontend()
    frontend.channel.send(PreprocessedRequest(token_ids=[1]), Context(), Reader(), columnar=True)
    _, there, outlet = await worker.requests.get()
    await frontend.plane.close()
    await there.async_killed_or_stopped()
    assert there.is_killed()
    outlet.fail(Cancelled("request was cancelled"))


async def test_an_ended_stream_can_still_be_read(worker: Worker) -> None:
    await worker.serve(KeepLimits())
    frontend = await worker.frontend()
    reader, _ = frontend.ask()
    _, _, outlet = await worker.requests.get()
    outlet.tokens([10])
    outlet.end()
    await reader.ended()
    again = (await worker.frontend()).attach()
    await again.ended()
    assert (again.read, again.error) == ([10], None)


async def test_the_latest_reader_gets_the_stream(worker: Worker) -> None:
    """A frontend that seems to be gone may only be unreachable for the client."""
    await worker.serve(KeepLimits())
    reader, context = (await worker.frontend()).ask()
    _, there, outlet = await worker.requests.get()
    again = (await worker.frontend()).attach()
    await reader.ended()
    assert isinstance(reader.error, Cancelled)
    context.kill()
    outlet.tokens([10])
    outlet.end()
    await again.ended()
    assert again.read == [10]
    assert not there.is_stopped()


async def test_what_earlier_workers_generated_comes_first(worker: Worker) -> None:
    await worker.serve(KeepLimits())
    first = await worker.frontend()
    first.ask(request=PreprocessedRequest(token_ids=[1, 2, 3, 10, 11], resumed_tokens=2))
    _, _, outlet = await worker.requests.get()
    await first.plane.close()
    second = await worker.frontend()
    assert (await second.describe()).resumed
    again = second.attach()
    outlet.tokens([12])
    outlet.end()
    await again.ended()
    assert again.read == [10, 11, 12]


async def test_an_owner_beyond_his_share_keeps_his_latest_streams(worker: Worker) -> None:
    """The others end with their connections, and another owner's are not touched."""
    await worker.serve(KeepLimits(bytes_per_owner=400))
    frontend = await worker.frontend()
    claims = [StreamClaim("one", "a"), StreamClaim("two", "a"), StreamClaim("three", "b")]
    running = []
    for claim in claims:
        frontend.ask(claim)
        running.append((await worker.requests.get())[1:])
    for _, outlet in running:
        outlet.tokens(list(range(60)))
    await frontend.plane.close()
    (one, first), (two, second), (three, third) = running
    await one.async_killed_or_stopped()
    assert one.is_killed()
    assert not two.is_stopped()
    assert not three.is_stopped()
    for outlet in (first, second, third):
        outlet.end()
