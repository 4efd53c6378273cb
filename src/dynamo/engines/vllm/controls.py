"""vLLM's operations besides answering, by upstream's names."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from vllm.v1.engine.async_llm import AsyncLLM

from dynamo.engines.base import Control
from dynamo.engines.vllm.weights import checked_weights
from dynamo.protocols.errors import HttpError, InvalidArgument
from dynamo.runtime.threads import in_thread

MODES = ("wait", "keep", "abort")
"""What becomes of running requests: they finish first, they go on afterwards, or they fail (and may migrate)."""


def vllm_controls(
    llm: AsyncLLM,
    clear_cache: Callable[[], Awaitable[bool]],
    announce_cleared: Callable[[], Awaitable[None]],
    die: Callable[[str], None],
) -> Mapping[str, Control]:
    config = llm.vllm_config

    async def sleep(body: dict[str, Any]) -> Any:
        """Free the memory of weights (level 1 keeps them on the host, 2 forgets them) and cache."""
        if not config.model_config.enable_sleep_mode:
            raise InvalidArgument("sleep needs a worker started with --enable-sleep-mode")
        level = body.get("level", 1)
        if level not in (0, 1, 2):
            raise InvalidArgument(f"level must be 0, 1 or 2, not {level!r}")
        await llm.sleep(level, _mode(body))
        return {"status": "ok", "sleeping": await llm.is_sleeping()}

    async def wake_up(body: dict[str, Any]) -> Any:
        if not config.model_config.enable_sleep_mode:
            raise InvalidArgument("wake_up needs a worker started with --enable-sleep-mode")
        tags = body.get("tags")
        if tags is not None and not (isinstance(tags, list) and {*tags} <= {"weights", "kv_cache"}):
            raise InvalidArgument("tags must be a list of 'weights' and 'kv_cache'")
        await llm.wake_up(tags)
        return {"status": "ok", "sleeping": await llm.is_sleeping()}

    async def pause_generation(body: dict[str, Any]) -> Any:
        """Requests wait from now on; their prefixes stay cached unless `clear_cache` is true."""
        clear = body.get("clear_cache", False)
        if not isinstance(clear, bool):
            raise InvalidArgument("clear_cache must be true or false")
        await llm.pause_generation(mode=_mode(body), clear_cache=clear)
        return {"status": "ok", "paused": await llm.is_paused()}

    async def resume_generation(body: dict[str, Any]) -> Any:
        await llm.resume_generation()
        return {"status": "ok", "paused": await llm.is_paused()}

    async def update_weights_from_disk(body: dict[str, Any]) -> Any:
        """Replace the weights by those of a folder with a model of the same shape; requests wait meanwhile."""
        mode = _mode(body)
        folder = await in_thread(lambda: checked_weights(body.get("model_path"), Path(config.model_config.model)))
        await llm.pause_generation(mode=mode, clear_cache=True)
        try:
            await llm.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})
        except Exception as error:
            # What is left of the model answers wrongly, or kills the engine at the next request.
            die(f"the weights of {folder} could not be loaded: {error}")
            raise
        await llm.resume_generation()
        await announce_cleared()
        return {"status": "ok", "model_path": str(folder)}

    async def start_profile(body: dict[str, Any]) -> Any:
        _refuse_without_profiler(config)
        prefix = body.get("profile_prefix")
        if prefix is not None and not isinstance(prefix, str):
            raise InvalidArgument("profile_prefix must be a string")
        try:
            await llm.start_profile(prefix)
        except Exception as error:
            if type(error).__name__ != "ProfilerAlreadyActiveError":  # unknown to vLLM 0.24
                raise
            raise HttpError(409, "a profile is being written: stop_profile ends it") from error

    async def stop_profile(body: dict[str, Any]) -> Any:
        _refuse_without_profiler(config)
        await llm.stop_profile()

    async def reset_prefix_cache(body: dict[str, Any]) -> Any:
        return {"status": "ok", "reset": await clear_cache()}

    return {
        "sleep": sleep,
        "wake_up": wake_up,
        "pause_generation": pause_generation,
        "resume_generation": resume_generation,
        "update_weights_from_disk": update_weights_from_disk,
        "start_profile": start_profile,
        "stop_profile": stop_profile,
        "reset_prefix_cache": reset_prefix_cache,
    }


def _mode(body: Mapping[str, Any]) -> str:
    mode = body.get("mode", MODES[0])
    if mode not in MODES:
        raise InvalidArgument(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
    return str(mode)


def _refuse_without_profiler(config: Any) -> None:
    if getattr(config.profiler_config, "profiler", None) is None:
        needed = '{"profiler": "torch", "torch_profiler_dir": "…"}'
        raise InvalidArgument(f"profiling needs a worker started with --profiler-config '{needed}'")
