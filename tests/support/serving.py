"""A whole stack in one process: a real HTTP server on a free port, and an engine behind the in-memory planes."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from msgspec import structs

from dynamo.api.catalog import APIS
from dynamo.api.route import Api
from dynamo.engines.base import Engine, EngineInfo, Running
from dynamo.engines.echo import EchoCore
from dynamo.frontend.config import FrontendConfig
from dynamo.frontend.measure.request_trace import RequestTrace
from dynamo.frontend.measure.tracing import Tracing
from dynamo.frontend.server import Server
from dynamo.llm import register_llm
from dynamo.model import HubConfig
from dynamo.protocols.card import ModelInput, ModelType
from dynamo.protocols.engine import PreprocessedRequest
from dynamo.protocols.errors import Cancelled
from dynamo.runtime import Context, DistributedRuntime, Endpoint, Local, RuntimeConfig
from dynamo.runtime.discovery import Put
from dynamo.runtime.names import instance_key
from dynamo.runtime.stream import Outlet, Sink
from dynamo.runtime.tracing.export import SpanSettings
from dynamo.worker.serve import engine_handler
from support.models import byte_level_model
from support.toys import samples

MODEL = "tiny"
CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hello world"}]}


class Served:
    def __init__(
        self, server: Server, runtime: DistributedRuntime, http: aiohttp.ClientSession, contexts: list[Context]
    ) -> None:
        self.contexts = contexts
        """Those the worker was given, one for each request it got."""
        self.server = server
        self.runtime = runtime
        self.http = http
        self.url = server.url
        self.port = int(server.url.rpartition(":")[2])

    async def chat(self, *, headers: dict[str, str] | None = None, **fields: Any) -> aiohttp.ClientResponse:
        body = io.BytesIO(msgspec.json.encode({**CHAT, **fields}))
        sent = {"Content-Type": "application/json", **(headers or {})}
        return await self.http.post(f"{self.url}/v1/chat/completions", data=body, headers=sent)

    async def metrics(self) -> dict[str, float]:
        """Every sample by its name and labels, as Prometheus writes them."""
        async with self.http.get(f"{self.url}/metrics") as answer:
            assert answer.status == 200
            return samples(await answer.text())

    @asynccontextmanager
    async def raw(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()


@asynccontextmanager
async def serving(
    folder: Path,
    engine: Engine | None = None,
    *,
    worker_namespace: str = "test",
    workers: int = 1,
    tracing: Tracing | None = None,
    request_trace: RequestTrace | None = None,
    spans: SpanSettings | None = None,
    card: dict[str, Any] | None = None,
    context: int = 2048,
    apis: Sequence[Api] = APIS,
    **config: Any,
) -> AsyncIterator[Served]:
    engine = engine or EchoCore(0.0)
    settings = FrontendConfig(**{"port": 0, **config})
    network = structs.replace(RuntimeConfig.in_process({}), graceful_shutdown_timeout=1.0)
    traced = structs.replace(network, spans=spans)
    local = Local()
    model = byte_level_model(folder / "model", max_position_embeddings=context)
    contexts: list[Context] = []
    submit = engine_handler(engine)
    request_type = PreprocessedRequest if engine.model_input is ModelInput.Tokens else Any

    def handler(request: Any, context: Context, outlet: Outlet) -> None:
        contexts.append(context)
        submit(request, context, outlet)

    async with AsyncExitStack() as stack:
        tasks = []
        runtimes = [await stack.enter_async_context(DistributedRuntime(config=network, local=local))]
        for _ in range(workers):
            runtime = await stack.enter_async_context(DistributedRuntime(config=traced, local=local))
            runtimes.append(runtime)
            endpoint = runtime.namespace(worker_namespace).component("backend").endpoint("generate")
            await register_llm(engine.model_input, ModelType.Backend, endpoint, model, MODEL, **(card or {}))
            tasks.append(asyncio.create_task(endpoint.serve(handler, request_type)))
            await registered(endpoint)
        hub = HubConfig(cache=folder)
        server = Server(runtimes[0], settings, hub, tracing=tracing, request_trace=request_trace, apis=apis)
        try:
            await server.start()
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
                yield Served(server, runtimes[0], http, contexts)
        finally:
            await server.stop()
            for runtime in runtimes:
                runtime.shutdown()
            await asyncio.gather(*tasks)
            await engine.close()


async def registered(endpoint: Endpoint) -> None:
    runtime = endpoint.runtime
    async with aclosing(runtime.discovery.watch(instance_key(endpoint.id, runtime.instance_id))) as changes:
        async for change in changes:
            if isinstance(change, Put):
                return


class Held:
    """A request of the engine below."""

    def __init__(self, request: PreprocessedRequest, sink: Sink) -> None:
        self.request = request
        self.sink = sink
        self.cancelled = asyncio.Event()

    def abort(self) -> None:
        if not self.cancelled.is_set():
            self.cancelled.set()
            self.sink.fail(Cancelled("request was cancelled"))


class Holding:
    """An engine whose tokens come when the test says so."""

    model_input = ModelInput.Tokens

    def __init__(self) -> None:
        self.requests: asyncio.Queue[Held] = asyncio.Queue()

    async def start(self) -> EngineInfo:
        return EngineInfo()

    def generate(self, request: PreprocessedRequest, sink: Sink) -> Running:
        held = Held(request, sink)
        self.requests.put_nowait(held)
        return held

    def quiet(self) -> bool:
        return self.requests.empty()

    async def close(self) -> None:
        pass
