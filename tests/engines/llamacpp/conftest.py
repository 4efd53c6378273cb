"""llama.cpp itself, with the bundled model on one thread."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest_asyncio

from dynamo.engines.llamacpp.engine import LlamaCppEngine
from dynamo.engines.registry import EngineSpec
from dynamo.model import LocalModel
from dynamo.model.source import bundled

Starting = Callable[..., Awaitable[LlamaCppEngine]]


@pytest_asyncio.fixture
async def starting() -> AsyncIterator[Starting]:
    """Starts engines, which end with the test. Keyword arguments are the engine's own, or those of the spec."""
    engines: list[LlamaCppEngine] = []

    async def start(**more: Any) -> LlamaCppEngine:
        spec = {name: more.pop(name) for name in list(more) if name in EngineSpec.__struct_fields__}
        spec.setdefault("model", LocalModel(source="tiny", path=bundled()))
        engine = LlamaCppEngine(EngineSpec(extra_engine_args={"n_threads": 1, **more}, **spec))
        engines.append(engine)
        await engine.start()
        return engine

    yield start
    for engine in engines:
        await engine.close()


@pytest_asyncio.fixture
async def engine(starting: Starting) -> LlamaCppEngine:
    return await starting()
