"""vLLM's operations besides answering, by upstream's names."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from vllm.v1.engine.async_llm import AsyncLLM

from dynamo.engines.base import Control
from dynamo.engines.vllm.weights import checked_weights
from dynamo.process.threads import in_thread
from dynamo.protocols.errors import HttpError, InvalidArgument

MODES = ("wait", "keep", "abort")
"""What becomes of running requests: they finish first, they go on afterwards, or they fail (and may migrate)."""
TAGS = ("weights", "kv_cache")


class VllmControls:
    def __init__(
        self,
        llm: AsyncLLM,
        clear_cache: Callable[[], Awaitable[bool]],
        announce_cleared: Callable[[], Awaitable[None]],
        die: Callable[[str], None],
    ) -> None:
        self._llm = llm
        self._config = llm.vllm_config
        self._clear_cache = clear_cache
        self._announce_cleared = announce_cleared
        self._die = die

    def table(self) -> Mapping[str, Control]:
        return {
            "sleep": self._sleep,
            "wake_up": self._wake_up,
            "pause_generation": self._pause,
            "resume_generation": self._resume,
            "update_weights_from_disk": self._update_weights,
            "start_profile": self._start_profile,
            "stop_profile": self._stop_profile,
            "reset_prefix_cache": self._reset_prefix_cache,
        }

    async def _sleep(self, body: dict[str, Any]) -> Any:
        """Free the memory of weights (level 1 keeps them on the host, 2 forgets them) and cache."""
        self._need_sleep_mode()
        level = body.get("level", 1)
        if level not in (0, 1, 2):
            raise InvalidArgument(f"level must be 0, 1 or 2, not {level!r}")
        await self._llm.sleep(level, _mode(body))
        return {"status": "ok", "sleeping": await self._llm.is_sleeping()}

    async def _wake_up(self, body: dict[str, Any]) -> Any:
        self._need_sleep_mode()
        tags = body.get("tags")
        if tags is not None and not (isinstance(tags, list) and all(tag in TAGS for tag in tags)):
            raise InvalidArgument(f"tags must be a list of {' and '.join(TAGS)}")
        await self._llm.wake_up(tags)
        return {"status": "ok", "sleeping": await self._llm.is_sleeping()}

    async def _pause(self, body: dict[str, Any]) -> Any:
        """Requests wait from now on; their prefixes stay cached unless `clear_cache` is true."""
        clear = body.get("clear_cache", False)
        if not isinstance(clear, bool):
            raise InvalidArgument("clear_cache must be true or false")
        await self._llm.pause_generation(mode=_mode(body), clear_cache=clear)
        return {"status": "ok", "paused": await self._llm.is_paused()}

    async def _resume(self, body: dict[str, Any]) -> Any:
        await self._llm.resume_generation()
        return {"status": "ok", "paused": await self._llm.is_paused()}

    async def _update_weights(self, body: dict[str, Any]) -> Any:
        """Replace the weights by those of a folder with a model of the same shape; requests wait meanwhile."""
        mode, running = _mode(body), Path(self._config.model_config.model)
        folder = await in_thread(lambda: checked_weights(body.get("model_path"), running))
        await self._llm.pause_generation(mode=mode, clear_cache=True)
        try:
            await self._llm.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})
        except Exception as error:
            # What is left of the model answers wrongly, or kills the engine at the next request.
            self._die(f"the weights of {folder} could not be loaded: {error}")
            raise
        await self._llm.resume_generation()
        await self._announce_cleared()
        return {"status": "ok", "model_path": str(folder)}

    async def _start_profile(self, body: dict[str, Any]) -> Any:
        self._need_profiler()
        prefix = body.get("profile_prefix")
        if prefix is not None and not isinstance(prefix, str):
            raise InvalidArgument("profile_prefix must be a string")
        try:
            await self._llm.start_profile(prefix)
        except Exception as error:
            if type(error).__name__ != "ProfilerAlreadyActiveError":  # unknown to vLLM 0.24
                raise
            raise HttpError(409, "a profile is being written: stop_profile ends it") from error

    async def _stop_profile(self, body: dict[str, Any]) -> Any:
        self._need_profiler()
        await self._llm.stop_profile()

    async def _reset_prefix_cache(self, body: dict[str, Any]) -> Any:
        return {"status": "ok", "reset": await self._clear_cache()}

    def _need_sleep_mode(self) -> None:
        if not self._config.model_config.enable_sleep_mode:
            raise InvalidArgument("sleep and wake_up need a worker started with --enable-sleep-mode")

    def _need_profiler(self) -> None:
        if getattr(self._config.profiler_config, "profiler", None) is None:
            needed = '{"profiler": "torch", "torch_profiler_dir": "…"}'
            raise InvalidArgument(f"profiling needs a worker started with --profiler-config '{needed}'")


def _mode(body: Mapping[str, Any]) -> str:
    mode = body.get("mode", MODES[0])
    if mode not in MODES:
        raise InvalidArgument(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
    return str(mode)
