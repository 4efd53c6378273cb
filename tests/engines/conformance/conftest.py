"""Every engine of this interpreter with the bundled model, started once and asked through the contract."""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from dynamo.engines.base import Engine, EngineInfo, LoadSource, RankLoad
from dynamo.engines.registry import EngineSpec, make_engine
from dynamo.model import LocalModel, bundled
from dynamo.protocols.engine import PreprocessedRequest
from engines.conformance.features import SETTINGS, engines_here
from support.sinks import Kept

CONTEXT = 1024

_vllm = importlib.util.find_spec("vllm")
if _vllm is not None and _vllm.origin is not None:
    from dynamo.engines.vllm.environment import installed, prepare

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    prepare(os.environ, installed(), [])

    def pytest_configure(config: pytest.Config) -> None:
        config.addinivalue_line("filterwarnings", "default")  # vLLM's imports warn

    @pytest.hookimpl(tryfirst=True)
    def pytest_unconfigure() -> None:
        warnings.simplefilter("ignore", ResourceWarning)  # vLLM leaves its ZMQ context to the end of the process


class Started:
    """An engine, and what it reported."""

    def __init__(self, name: str, engine: Engine, info: EngineInfo) -> None:
        self.name = name
        self.engine = engine
        self.info = info
        self.loads: list[RankLoad] = []
        if isinstance(engine, LoadSource):
            engine.on_load(self.loads.append)

    async def ask(self, *requests: PreprocessedRequest) -> list[Kept]:
        """All at once."""
        sinks = [Kept() for _ in requests]
        for request, sink in zip(requests, sinks, strict=True):
            self.engine.generate(request, sink)
        for sink in sinks:
            await sink.done
        return sinks

    async def one(self, request: PreprocessedRequest) -> Kept:
        (kept,) = await self.ask(request)
        return kept


def spec(name: str, **more: object) -> EngineSpec:
    local = LocalModel(source="tiny", path=bundled())
    settings = {**SETTINGS[name], **more}
    return EngineSpec(model=local, model_name="tiny", context_length=CONTEXT, **settings)


@pytest_asyncio.fixture(scope="session", loop_scope="session", params=engines_here())
async def started(request: pytest.FixtureRequest) -> AsyncIterator[Started]:
    """Each engine here, or those that a test names (`only`)."""
    engine = make_engine(request.param, spec(request.param))
    try:
        yield Started(request.param, engine, await engine.start())
    finally:
        await engine.close()


def only(engines: list[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("started", engines, indirect=True)
