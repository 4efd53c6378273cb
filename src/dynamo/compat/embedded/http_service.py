"""`HttpService`: our HTTP routes over generators of this program."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from msgspec import structs

from dynamo.frontend.config import FrontendConfig
from dynamo.frontend.server import Server
from dynamo.llm.register import register_card
from dynamo.model import HubConfig
from dynamo.protocols.card import ModelCard, ModelInput, ModelType
from dynamo.runtime import DistributedRuntime, Local, RuntimeConfig

_ENDPOINTS = ("chat", "completion", "embedding", "responses", "anthropic")
_SHUTDOWN_SECONDS = 5.0


class PythonAsyncEngine:
    """An async generator of (request[, context]) that answers with OpenAI's chunks."""

    def __init__(self, generator: Callable[..., Any], event_loop: asyncio.AbstractEventLoop | None = None) -> None:
        del event_loop  # for programs written for ai-dynamo: here it runs on the loop of the service
        self.generator = generator

    def generate(self, *args: Any, **options: Any) -> Any:
        return self.generator(*args, **options)


class HttpAsyncEngine(PythonAsyncEngine):
    """As `PythonAsyncEngine`; in both, an exception with an HTTP status chooses the status of the response."""


class HttpService:
    """Serves the models that were added when it runs, all routes on one port."""

    def __init__(self, port: int | None = None, host: str | None = None) -> None:
        given: dict[str, Any] = {"port": port, "host": host}
        self._config = FrontendConfig(**{name: value for name, value in given.items() if value is not None})
        self._models: dict[str, tuple[ModelType, PythonAsyncEngine]] = {}
        self._stopping = asyncio.Event()
        self._running: DistributedRuntime | None = None
        self.url = ""
        """Where it listens, once it runs."""

    def add_chat_completions_model(self, model: str, checksum: str, engine: PythonAsyncEngine) -> None:
        self._add(model, ModelType.Chat, engine)

    def add_completions_model(self, model: str, checksum: str, engine: PythonAsyncEngine) -> None:
        self._add(model, ModelType.Completions, engine)

    def _add(self, model: str, kind: ModelType, engine: PythonAsyncEngine) -> None:
        if self._running:
            raise RuntimeError("add models before the service runs")
        if model in self._models:
            raise ValueError(f"model '{model}' was added already")
        self._models[model] = kind, engine

    def remove_model(self, model: str) -> None:
        if self._running:
            raise RuntimeError("remove models before the service runs")
        self._models.pop(model, None)

    def list_chat_completions_models(self) -> list[str]:
        return [name for name, (kind, _) in self._models.items() if kind is ModelType.Chat]

    def list_completions_models(self) -> list[str]:
        return [name for name, (kind, _) in self._models.items() if kind is ModelType.Completions]

    def enable_endpoint(self, endpoint: str, enabled: bool = True) -> None:
        """All routes are always on; a route for which no model is served answers with an error."""
        if endpoint not in _ENDPOINTS:
            raise ValueError(f"there is no endpoint '{endpoint}' to enable; there are {', '.join(_ENDPOINTS)}")
        if not enabled:
            raise ValueError(f"endpoint '{endpoint}' is always on")

    async def run(self, runtime: DistributedRuntime) -> None:
        """Serve until `shutdown`, or until the program's runtime shuts down."""
        network = structs.replace(RuntimeConfig.in_process(os.environ), graceful_shutdown_timeout=_SHUTDOWN_SECONDS)
        async with AsyncExitStack() as closing:
            inside = self._running = await closing.enter_async_context(
                DistributedRuntime(config=network, local=Local())
            )
            serving: list[asyncio.Task[Any]] = []
            server = Server(inside, self._config, HubConfig.from_env(os.environ))
            try:
                for at, (name, (kind, engine)) in enumerate(self._models.items()):
                    serving.append(asyncio.create_task(await self._serve(inside, at, name, kind, engine)))
                await server.start()
                for name in self._models:
                    await server.models.wait_for(name)
                self.url = server.url
                await wait_until_stopped(runtime, self._stopping)
            finally:
                await server.stop()
                inside.shutdown()
                await asyncio.gather(*serving, return_exceptions=True)

    async def _serve(
        self, inside: DistributedRuntime, at: int, name: str, kind: ModelType, engine: PythonAsyncEngine
    ) -> Any:
        endpoint = inside.endpoint(f"http.model{at}.generate")
        card = ModelCard(name=name, model_type=kind.value, model_input=ModelInput.Text)
        await register_card(endpoint, card)
        return endpoint.serve_endpoint(engine.generator)

    def shutdown(self) -> None:
        self._stopping.set()


async def wait_until_stopped(runtime: DistributedRuntime, stopping: asyncio.Event) -> None:
    """Wait until a service is to stop, or the program's runtime shuts down."""
    waiting = [asyncio.create_task(stopping.wait()), asyncio.create_task(runtime.wait_for_shutdown())]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
