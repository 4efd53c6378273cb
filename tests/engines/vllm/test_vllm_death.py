"""The processes of an engine: one that dies is reported, and none is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import psutil
import pytest

from dynamo.engines.base import EngineError
from dynamo.engines.registry import EngineSpec
from dynamo.engines.vllm.environment import vllm_from_spec
from dynamo.model import LocalModel, bundled
from dynamo.protocols.engine import PreprocessedRequest, StopConditions
from dynamo.protocols.errors import EngineShutdown
from support.sinks import Kept
from support.waiting import until


def children() -> list[psutil.Process]:
    """The engine's processes: Python's own resource tracker stays."""
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if "resource_tracker" not in " ".join(_words(child))
    ]


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline() if process.status() != psutil.STATUS_ZOMBIE else ["resource_tracker"]
    except psutil.NoSuchProcess:
        return ["resource_tracker"]


def engine(*flags: str) -> Any:
    return vllm_from_spec(
        EngineSpec(
            model=LocalModel(source="tiny", path=bundled()),
            context_length=1024,
            arguments=["--kv-cache-memory-bytes", "64M", *flags],
        )
    )


@pytest.fixture
async def started() -> AsyncIterator[Any]:
    made = engine()
    try:
        await made.start()
        yield made
    finally:
        await made.close()
        await made.close()
        await until(lambda: not children())


@pytest.mark.parametrize("victim", [0, -1], ids=["the engine", "its worker"])
async def test_a_killed_process_fails_the_streams_and_is_reported(started: Any, victim: int) -> None:
    died: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    started.on_death(died.set_result)
    kept = Kept()
    stops = StopConditions(max_tokens=900, ignore_eos=True)
    started.generate(PreprocessedRequest(token_ids=[5, 6], stop_conditions=stops), kept)
    await until(lambda: kept.ids)
    os.kill(children()[victim].pid, signal.SIGKILL)
    assert await died
    await kept.done
    assert isinstance(kept.error, EngineShutdown)
    assert kept.error.migratable
    late = Kept()
    started.generate(PreprocessedRequest(token_ids=[5, 6]), late)
    await late.done
    assert isinstance(late.error, EngineShutdown)


async def test_an_engine_that_cannot_load_says_why_and_leaves_nothing() -> None:
    made = engine("--num-gpu-blocks-override", "1", "--max-model-len", "1024")
    with pytest.raises(EngineError, match="vLLM could not start"):
        await made.start()
    await made.close()
    await until(lambda: not children())


async def test_an_engine_closed_while_it_loads_leaves_nothing() -> None:
    made = engine()
    loading = asyncio.create_task(made.start())
    await until(children)
    loading.cancel()
    await asyncio.gather(loading, return_exceptions=True)
    await made.close()
    await until(lambda: not children())
