"""LoRA adapters of a worker: each is a model of its own, at an endpoint beside that of the base model.

Its card is the base model's with another name, so that parsers, template and limits are the same.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from msgspec import structs

from dynamo.engines.base import AdapterHost, Control, Engine
from dynamo.model import AdapterConfig, ModelError, adapter_folder
from dynamo.model.adapter import lora_name_to_id
from dynamo.process.threads import in_thread
from dynamo.protocols.card import LoraInfo, ModelCard
from dynamo.protocols.errors import HttpError, InvalidArgument
from dynamo.runtime import Endpoint
from dynamo.runtime.names import EndpointId
from dynamo.worker.serve import register_and_serve


class WorkerAdapters:
    def __init__(
        self, endpoint: Endpoint, engine: Engine, host: AdapterHost, card: ModelCard, sources: AdapterConfig
    ) -> None:
        self._endpoint = endpoint
        self._engine = engine
        self._host = host
        self._card = card
        self._sources = sources
        self._listed: dict[str, AsyncExitStack] = {}
        self._one_at_a_time = asyncio.Lock()

    def controls(self) -> dict[str, Control]:
        return {"load_lora": self._load, "unload_lora": self._unload, "list_loras": self._list}

    async def _load(self, body: dict[str, Any]) -> Any:
        name, source = body.get("lora_name"), body.get("source")
        if not isinstance(name, str) or not name:
            raise InvalidArgument("lora_name must be the name of the adapter")
        if name == self._card.name:
            raise InvalidArgument(f"'{name}' is the name of the base model")
        uri = source.get("uri") if isinstance(source, dict) else None
        if not isinstance(uri, str) or not uri:
            raise InvalidArgument('source must be {"uri": "file:///folder/of/the/adapter"}, or hf://… or s3://…')
        async with self._one_at_a_time:
            try:
                folder = await in_thread(lambda: adapter_folder(uri, self._sources))
            except ModelError as error:
                raise InvalidArgument(str(error)) from error
            number = await self._host.load_adapter(name, folder)
            if name not in self._listed:
                stack = AsyncExitStack()
                try:
                    await stack.enter_async_context(
                        register_and_serve(self._place(number), self._engine, self._adapter_card(name))
                    )
                except BaseException:
                    await self._host.unload_adapter(name)
                    raise
                self._listed[name] = stack
        return {"status": "success", "message": f"adapter '{name}' is loaded", "lora_name": name, "lora_id": number}

    async def _unload(self, body: dict[str, Any]) -> Any:
        name = body.get("lora_name")
        async with self._one_at_a_time:
            stack = self._listed.pop(name, None) if isinstance(name, str) else None
            if stack is None or not isinstance(name, str):
                raise HttpError(404, f"this worker has no adapter '{name}'")
            # Requests that arrive until it has left discovery must still be answered.
            await stack.aclose()
            await self._host.unload_adapter(name)
        number = lora_name_to_id(name)
        return {"status": "success", "message": f"adapter '{name}' is unloaded", "lora_name": name, "lora_id": number}

    async def _list(self, body: dict[str, Any]) -> Any:
        loras = {name: lora_name_to_id(name) for name in sorted(self._listed)}
        return {"status": "success", "loras": loras, "count": len(loras)}

    async def close(self) -> None:
        async with self._one_at_a_time:
            while self._listed:
                await self._listed.popitem()[1].aclose()

    def _place(self, number: int) -> Endpoint:
        base = self._endpoint.id
        return Endpoint(
            self._endpoint.runtime, EndpointId(base.namespace, base.component, f"{base.name}-lora-{number:x}")
        )

    def _adapter_card(self, name: str) -> ModelCard:
        return structs.replace(self._card, name=name, lora=LoraInfo(name=name, base_model=self._card.name))
