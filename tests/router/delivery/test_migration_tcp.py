"""Moving over real connections: workers that are cut off, that are dead, and that stay registered all the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from dynamo.protocols.card import ModelRuntimeConfig
from dynamo.protocols.engine import EngineOutput, PreprocessedRequest, StopConditions
from dynamo.protocols.errors import Disconnected, DynamoException
from dynamo.protocols.instance import Instance
from dynamo.router import RoutingConfig
from dynamo.router.config import RequestBackoff
from dynamo.router.delivery.delivery import Delivery, DeliveryOptions
from dynamo.router.simple import SimpleRouter
from dynamo.runtime import Context, EndpointId
from dynamo.runtime.events.memory import MemoryBus, MemoryEventPlane
from dynamo.runtime.instances import InstanceSet
from dynamo.runtime.plane.base import route_path
from dynamo.runtime.plane.route import Route
from dynamo.runtime.plane.server_link import ServerLink
from dynamo.runtime.plane.tcp import TcpConfig, TcpPlane
from dynamo.runtime.stream import Outlet
from support.waiting import PATIENCE

GENERATE = EndpointId("test", "backend", "generate")


class Worker:
    """Its requests wait for the test's word, and its connections can be cut."""

    def __init__(self, instance_id: int, *predecessors: int) -> None:
        """The predecessors had its address before, and are registered still."""
        self.route = Route(route_path(GENERATE, instance_id), self._handle, PreprocessedRequest)
        self.requests: asyncio.Queue[tuple[PreprocessedRequest, Outlet]] = asyncio.Queue()
        self.connections = 0
        self.dead = False
        """Whoever connects is hung up on."""
        self._id = instance_id
        self._predecessors = predecessors
        self._open: set[asyncio.StreamWriter] = set()

    def _handle(self, request: PreprocessedRequest, context: Context, outlet: Outlet) -> None:
        self.requests.put_nowait((request, outlet))

    @asynccontextmanager
    async def registered(self, instances: InstanceSet) -> AsyncIterator[None]:
        async with await asyncio.start_server(self._connected, "127.0.0.1") as server:
            host, port = server.sockets[0].getsockname()
            for instance_id in (self._id, *self._predecessors):
                instances.put(Instance(
                    instance_id=instance_id,
                    namespace=GENERATE.namespace,
                    component=GENERATE.component,
                    endpoint=GENERATE.name,
                    transport="tcp",
                    address=f"{host}:{port}",
                ))  # fmt: skip
            yield
            self.cut()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if not self.dead:
            self._open.add(writer)
            link = ServerLink(writer.write, "a client", {self.route.path: self.route}, beat=60.0)
            while data := await reader.read(1 << 16):
                link.feed(data)
            link.lose(Disconnected("cut"))
        writer.close()

    def cut(self) -> None:
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()


class Reader:
    def __init__(self) -> None:
        self.seen: list[int] = []
        self.error: DynamoException | None = None
        self.some = asyncio.Event()
        self.done = asyncio.Event()

    def tokens(self, ids: list[int]) -> None:
        self.seen += ids
        self.some.set()

    def item(self, value: EngineOutput) -> None:
        self.tokens(value.token_ids)

    def end(self) -> None:
        self.done.set()

    def fail(self, error: DynamoException) -> None:
        self.error = error
        self.done.set()


@asynccontextmanager
async def reaching(*workers: Worker) -> AsyncIterator[SimpleRouter]:
    async with AsyncExitStack() as stack:
        plane = TcpPlane(TcpConfig())
        stack.push_async_callback(plane.close)
        instances = InstanceSet("test", plane)
        stack.push_async_callback(instances.close)
        for worker in workers:
            await stack.enter_async_context(worker.registered(instances))
        yield SimpleRouter(RoutingConfig(), instances, MemoryEventPlane(MemoryBus()), lambda _: ModelRuntimeConfig())


@asynccontextmanager
async def asked(router: SimpleRouter, limit: int, wait: float = 30.0) -> AsyncIterator[Reader]:
    """A request for ten tokens under way."""
    request = PreprocessedRequest(token_ids=[1, 2], stop_conditions=StopConditions(max_tokens=10))
    reader = Reader()
    options = DeliveryOptions(limit=limit, backoff=partial(RequestBackoff, wait))
    delivery = Delivery(router.place, router.instances, request, Context(), reader, options)
    async with asyncio.timeout(PATIENCE):
        await delivery.start()
        yield reader
    await delivery.close()


async def test_a_worker_that_is_only_cut_off_goes_on_itself() -> None:
    worker = Worker(1)
    async with reaching(worker) as router, asked(router, limit=1) as reader:
        _, outlet = await worker.requests.get()
        outlet.tokens([3, 4])
        await reader.some.wait()
        worker.cut()
        request, outlet = await worker.requests.get()
        assert list(request.token_ids) == [1, 2, 3, 4]
        assert request.stop_conditions.max_tokens == 8
        outlet.item(EngineOutput(token_ids=[5], finish_reason="eos"))
        outlet.end()
        await reader.done.wait()
        assert reader.error is None
        assert reader.seen == [3, 4, 5]
        assert worker.connections == 2


async def test_a_dead_worker_that_stays_registered_is_tried_as_long_as_the_back_off_allows() -> None:
    worker = Worker(1)
    async with reaching(worker) as router, asked(router, limit=50, wait=0.2) as reader:
        _, outlet = await worker.requests.get()
        outlet.tokens([3])
        await reader.some.wait()
        worker.dead = True
        worker.cut()
        await reader.done.wait()
        assert isinstance(reader.error, Disconnected)
        assert reader.seen == [3]
        assert worker.connections > 2


async def test_a_dead_worker_whose_address_another_has_now_is_passed_over() -> None:
    worker = Worker(1, 2, 3)
    async with reaching(worker) as router:
        for _ in range(3):
            async with asked(router, limit=0) as reader:
                _, outlet = await worker.requests.get()
                outlet.tokens([3])
                outlet.end()
                await reader.done.wait()
                assert reader.seen == [3]
