"""The LoRA adapters that a running vLLM has."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from vllm.lora.request import LoRARequest
from vllm.v1.engine.async_llm import AsyncLLM

from dynamo.model.adapter import lora_name_to_id
from dynamo.protocols.errors import InvalidArgument, Unavailable


class VllmAdapters:
    def __init__(self, llm: AsyncLLM, clear_cache: Callable[[], Awaitable[bool]]) -> None:
        self._llm = llm
        self._clear_cache = clear_cache
        self._loaded: dict[str, LoRARequest] = {}
        self._cached: dict[str, str] = {}
        """The path by which each name was last loaded: cached prefixes are its own, and vLLM knows them by the name."""

    def find(self, name: str) -> LoRARequest:
        """Raises InvalidArgument for an adapter that is not loaded."""
        if (found := self._loaded.get(name)) is None:
            raise InvalidArgument(f"this worker has no adapter '{name}'")
        return found

    async def load(self, name: str, folder: Path) -> int:
        """The adapter's id. One that is loaded already stays; raises InvalidArgument for one that cannot be loaded."""
        if (config := self._llm.vllm_config.lora_config) is None:
            raise InvalidArgument("adapters need a worker started with --enable-lora")
        path = str(folder)
        if (loaded := self._loaded.get(name)) is not None:
            if loaded.lora_path != path:
                raise InvalidArgument(f"adapter '{name}' is loaded from {loaded.lora_path}: unload it first")
            return int(loaded.lora_int_id)
        _check(folder, config.max_lora_rank)
        if self._cached.get(name, path) != path and not await self._clear_cache():
            raise Unavailable(f"another adapter '{name}' was loaded before, and requests hold its cache: try again")
        request = LoRARequest(lora_name=name, lora_int_id=lora_name_to_id(name), lora_path=path)
        try:
            await self._llm.add_lora(request)
        except Exception as error:
            if self._llm.errored:
                raise
            raise InvalidArgument(f"vLLM cannot load adapter '{name}': {error}") from error
        self._loaded[name] = request
        self._cached[name] = path
        return int(request.lora_int_id)

    async def unload(self, name: str) -> None:
        request = self.find(name)
        del self._loaded[name]
        await self._llm.remove_lora(request.lora_int_id)


def _check(folder: Path, most: int) -> None:
    """What vLLM would find out only in the process of the engine."""
    try:
        config: Any = json.loads((folder / "adapter_config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{folder} is no adapter in PEFT's layout: adapter_config.json: {error}") from None
    rank = config.get("r") if isinstance(config, dict) else None
    if not isinstance(rank, int):
        raise InvalidArgument(f"{folder}/adapter_config.json has no rank 'r'")
    if rank > most:
        raise InvalidArgument(f"the adapter has rank {rank}, this worker takes {most}: start it with --max-lora-rank")
