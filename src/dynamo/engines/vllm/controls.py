"""vLLM's operations besides answering, by upstream's names."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from vllm.v1.engine.async_llm import AsyncLLM

from dynamo.engines.base import Control
from dynamo.protocols.errors import InvalidArgument


def vllm_controls(llm: AsyncLLM, clear_cache: Callable[[], Awaitable[bool]]) -> Mapping[str, Control]:
    config = llm.vllm_config

    async def sleep(body: dict[str, Any]) -> Any:
        """Free the memory of weights (level 1 keeps them on the host, 2 forgets them) and cache."""
        if not config.model_config.enable_sleep_mode:
            raise InvalidArgument("sleep needs a worker started with --enable-sleep-mode")
        level = body.get("level", 1)
        if level not in (0, 1, 2):
            raise InvalidArgument(f"level must be 0, 1 or 2, not {level!r}")
        await llm.sleep(level)
        return {"status": "ok", "sleeping": await llm.is_sleeping()}

    async def wake_up(body: dict[str, Any]) -> Any:
        if not config.model_config.enable_sleep_mode:
            raise InvalidArgument("wake_up needs a worker started with --enable-sleep-mode")
        tags = body.get("tags")
        if tags is not None and not (isinstance(tags, list) and {*tags} <= {"weights", "kv_cache"}):
            raise InvalidArgument("tags must be a list of 'weights' and 'kv_cache'")
        await llm.wake_up(tags)
        return {"status": "ok", "sleeping": await llm.is_sleeping()}

    async def start_profile(body: dict[str, Any]) -> Any:
        _refuse_without_profiler(config)
        await llm.start_profile(body.get("profile_prefix"))

    async def stop_profile(body: dict[str, Any]) -> Any:
        _refuse_without_profiler(config)
        await llm.stop_profile()

    async def reset_prefix_cache(body: dict[str, Any]) -> Any:
        return {"status": "ok", "reset": await clear_cache()}

    return {
        "sleep": sleep,
        "wake_up": wake_up,
        "start_profile": start_profile,
        "stop_profile": stop_profile,
        "reset_prefix_cache": reset_prefix_cache,
    }


def _refuse_without_profiler(config: Any) -> None:
    if getattr(config.profiler_config, "profiler", None) is None:
        needed = '{"profiler": "torch", "torch_profiler_dir": "…"}'
        raise InvalidArgument(f"profiling needs a worker started with --profiler-config '{needed}'")
