"""`KserveGrpcService`: the KServe protocol over generators of this program."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from typing import Any

from msgspec import structs

from dynamo.compat.embedded.http_service import PythonAsyncEngine, wait_until_stopped
from dynamo.llm.register import register_card
from dynamo.model import HubConfig
from dynamo.protocols.card import ModelCard, ModelInput, ModelRuntimeConfig, ModelType
from dynamo.router import RoutingConfig
from dynamo.runtime import DistributedRuntime, Local, RuntimeConfig
from dynamo.serving.models import Models

try:
    from dynamo.api.kserve.server import KserveServer
except ModuleNotFoundError as error:
    raise ImportError(f"KserveGrpcService needs gRPC ({error}): pip install 'dynamo-serving[kserve]'") from error

_SHUTDOWN_SECONDS = 5.0


class KserveGrpcService:
    """Serves the models that were added when it runs."""

    def __init__(self, port: int | None = None, host: str | None = None) -> None:
        self._port = 8787 if port is None else port
        self._host = host or "127.0.0.1"
        self._models: dict[str, tuple[ModelCard, PythonAsyncEngine]] = {}
        self._stopping = asyncio.Event()
        self._runs = False
        self.address = ""
        """Where it listens, once it runs."""

    def add_completions_model(self, model: str, checksum: str, engine: PythonAsyncEngine) -> None:
        self._add(_text_card(model, ModelType.Completions), engine)

    def add_chat_completions_model(self, model: str, checksum: str, engine: PythonAsyncEngine) -> None:
        """It is listed and ready, but the protocol has no call for chats."""
        self._add(_text_card(model, ModelType.Chat), engine)

    def add_tensor_model(
        self,
        model: str,
        checksum: str,
        engine: PythonAsyncEngine,
        *,
        runtime_config: ModelRuntimeConfig | None = None,
        tensor_model_config: dict[str, Any] | None = None,
    ) -> None:
        card = ModelCard(
            name=model,
            model_type=ModelType.TensorBased.value,
            model_input=ModelInput.Tensor,
            tensor_model_config=tensor_model_config,
            runtime_config=runtime_config or ModelRuntimeConfig(),
        )
        self._add(card, engine)

    def _add(self, card: ModelCard, engine: PythonAsyncEngine) -> None:
        if self._runs:
            raise RuntimeError("add models before the service runs")
        if card.name in self._models:
            raise ValueError(f"model '{card.name}' was added already")
        self._models[card.name] = card, engine

    def remove_completions_model(self, model: str) -> None:
        self._remove(model, ModelType.Completions)

    def remove_chat_completions_model(self, model: str) -> None:
        self._remove(model, ModelType.Chat)

    def remove_tensor_model(self, model: str) -> None:
        self._remove(model, ModelType.TensorBased)

    def _remove(self, model: str, kind: ModelType) -> None:
        if self._runs:
            raise RuntimeError("remove models before the service runs")
        if model not in self._list(kind):
            raise ValueError(f"there is no model '{model}' of this kind")
        del self._models[model]

    def list_completions_models(self) -> list[str]:
        return self._list(ModelType.Completions)

    def list_chat_completions_models(self) -> list[str]:
        return self._list(ModelType.Chat)

    def list_tensor_models(self) -> list[str]:
        return self._list(ModelType.TensorBased)

    def _list(self, kind: ModelType) -> list[str]:
        return [name for name, (card, _) in self._models.items() if card.type is kind]

    async def run(self, runtime: DistributedRuntime) -> None:
        """Serve until `shutdown`, or until the program's runtime shuts down."""
        self._runs = True
        network = structs.replace(RuntimeConfig.in_process(os.environ), graceful_shutdown_timeout=_SHUTDOWN_SECONDS)
        async with AsyncExitStack() as closing:
            inside = await closing.enter_async_context(DistributedRuntime(config=network, local=Local()))
            models = Models(inside, RoutingConfig(), HubConfig.from_env(os.environ))
            server = KserveServer(models, self._host, self._port)
            serving: list[asyncio.Task[None]] = []
            try:
                await models.start()
                for at, (card, engine) in enumerate(self._models.values()):
                    endpoint = inside.endpoint(f"kserve.model{at}.generate")
                    await register_card(endpoint, card)
                    serving.append(asyncio.create_task(endpoint.serve_endpoint(engine.generator)))
                for name in self._models:
                    await models.wait_for(name)
                await server.start()
                self.address = server.address
                await wait_until_stopped(runtime, self._stopping)
            finally:
                await server.stop(_SHUTDOWN_SECONDS)
                inside.shutdown()
                await asyncio.gather(*serving, return_exceptions=True)
                await models.close()

    def shutdown(self) -> None:
        self._stopping.set()


def _text_card(model: str, kind: ModelType) -> ModelCard:
    return ModelCard(name=model, model_type=kind.value, model_input=ModelInput.Text)
