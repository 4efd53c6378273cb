"""The life of a worker around its engine: start, test, publish, register, serve; leave, then close.

The engine's death ends it: leave discovery, fail the streams so that they migrate, close, raise.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec import Struct, structs

from dynamo.engines.base import AdapterHost, DeathSource, Engine, EngineError, EngineInfo
from dynamo.engines.registry import EngineSpec, check_engine, make_engine
from dynamo.model import BUNDLED, AdapterConfig
from dynamo.process.children import exit_within
from dynamo.process.threads import in_thread
from dynamo.protocols.card import ModelCard
from dynamo.runtime import DistributedRuntime, Endpoint
from dynamo.runtime.names import EndpointId
from dynamo.runtime.plane.admission import RequestLimit, request_limit
from dynamo.runtime.process import INTERRUPTED, exit_if_blocked, unless_shut_down
from dynamo.settings.worker import StepTraceSettings
from dynamo.worker.adapters import WorkerAdapters
from dynamo.worker.config import check
from dynamo.worker.health import check_answers
from dynamo.worker.model import EngineModel, find_model, model_card
from dynamo.worker.serve import publish_engine, register_and_serve
from dynamo.worker.step_trace import record_steps

log = logging.getLogger(__name__)

_DEATH_SECONDS = 5.0
"""A dead engine may hang whatever waits for it: its process ends after this time in any case."""


_UNRECORDED = StepTraceSettings()


class Interrupted(Exception):
    """A signal came while the engine was starting or being tested."""


class StartedEngine(Struct, frozen=True):
    """An engine that can generate."""

    found: EngineModel
    engine: Engine
    info: EngineInfo
    adapters: AdapterConfig
    """Where its LoRA adapters come from."""


@asynccontextmanager
async def start_and_serve(
    runtime: DistributedRuntime, spec: EngineSpec, endpoint_id: EndpointId
) -> AsyncIterator[ModelCard]:
    """Start the engine and serve it while the block runs."""
    async with (
        start_engine(runtime, spec) as started,
        check_and_serve(runtime, started, spec, endpoint_id) as card,
    ):
        yield card


@asynccontextmanager
async def check_and_serve(
    runtime: DistributedRuntime, started: StartedEngine, spec: EngineSpec, endpoint_id: EndpointId
) -> AsyncIterator[ModelCard]:
    """Test a started engine with a request, then serve it while the block runs."""
    card = await unless_shut_down(runtime, _describe_and_check(started, spec))
    if card is None:
        raise Interrupted("interrupted")
    endpoint = Endpoint(runtime, endpoint_id)
    async with (
        publish_and_serve(
            endpoint,
            started.engine,
            card,
            kv_events=spec.kv_events,
            limit=request_limit(spec.engine_request_limit, spec.engine_queue_limit),
            steps=spec.step_trace,
        ) as listed_card,
        _offer_adapters(endpoint, started.engine, listed_card, started.adapters),
    ):
        yield listed_card


async def _describe_and_check(started: StartedEngine, spec: EngineSpec) -> ModelCard:
    """Describe the engine by a card, and check that it answers."""
    card = await in_thread(lambda: model_card(spec, started.found, started.engine, started.info))
    if spec.file is None:  # a user's code sees the requests of clients only
        await check_answers(started.engine, card.name)
    return card


@asynccontextmanager
async def start_engine(
    runtime: DistributedRuntime, spec: EngineSpec, found: EngineModel | None = None
) -> AsyncIterator[StartedEngine]:
    """Start an engine, and close it after the block. Raises EngineError at the end of the block if the engine died.

    `found` is its model, if all of it is on this machine.
    """
    check(spec)
    runtime.engine = spec.engine
    with exit_if_blocked(INTERRUPTED):
        started = await unless_shut_down(runtime, _start(spec, found))
    if started is None:
        raise Interrupted("interrupted")
    async with close_at_end(runtime, started.engine, spec.engine):
        yield started


@asynccontextmanager
async def publish_and_serve(
    endpoint: Endpoint,
    engine: Engine,
    card: ModelCard,
    *,
    kv_events: bool = True,
    limit: RequestLimit | None = None,
    steps: StepTraceSettings = _UNRECORDED,
) -> AsyncIterator[ModelCard]:
    """Publish, register and serve an engine that answers, with its card as listed; at the end, leave and drain."""
    async with record_steps(endpoint, engine, steps):
        # Before the endpoint: a router that finds it must also find its events, load and clearing endpoint.
        await publish_engine(endpoint, engine, card.name, kv_events=kv_events)
        async with register_and_serve(endpoint, engine, card, limit) as card:
            yield card


@asynccontextmanager
async def _offer_adapters(
    endpoint: Endpoint, engine: Engine, card: ModelCard, sources: AdapterConfig
) -> AsyncIterator[None]:
    """Offer to load adapters, where the engine can and the worker has a port for it."""
    status = endpoint.runtime.status
    if status is None or not isinstance(engine, AdapterHost):
        yield
        return
    adapters = WorkerAdapters(endpoint, engine, engine, card, sources)
    status.add_controls(adapters.controls(), endpoint.runtime.config.tcp.token)
    try:
        yield
    finally:
        await adapters.close()


@asynccontextmanager
async def close_at_end(runtime: DistributedRuntime, engine: Engine, name: str) -> AsyncIterator[None]:
    """Close a started engine at the end of the block. If it dies before, shut down and raise EngineError."""
    death = Death(runtime, engine)
    if isinstance(engine, DeathSource):
        engine.on_death(death.died)
    try:
        yield
    except BaseException:
        if death.reason is None:
            raise
    finally:
        await death.close()
    if death.reason is not None:
        raise EngineError(f"the engine '{name}' died: {death.reason}")


class Death:
    """What follows the death of an engine."""

    def __init__(self, runtime: DistributedRuntime, engine: Engine) -> None:
        self._runtime = runtime
        self._engine = engine
        self.reason: str | None = None
        """Why it died; None while it lives, and if it ended because the worker was asked to leave."""
        self._closing: asyncio.Task[None] | None = None

    def died(self, reason: str) -> None:
        if self._closing is not None:  # also of an engine that reports the end of a process that it closes
            return
        if not self._runtime.is_shutting_down:
            self.reason = reason
        log.error("the engine died: %s", reason)
        exit_within(_DEATH_SECONDS, 1)
        self._runtime.shutdown(drain=False)
        # At once: a stream that is being drained ends only when the engine fails it.
        self._closing = asyncio.create_task(self._engine.close())

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.create_task(self._engine.close())
        try:
            await self._closing
        except Exception:
            if self.reason is None:
                raise
            log.exception("the dead engine could not be closed")


async def _start(spec: EngineSpec, known: EngineModel | None) -> StartedEngine:
    """Reject what is wrong before a download, and before anything is loaded."""
    check_engine(spec)
    adapters = AdapterConfig.from_env(spec.environ)  # before an engine changes the environment for its own processes

    def make(found: EngineModel) -> Engine:
        described_by = found.described_by if spec.model_config_path else None
        return make_engine(
            spec.engine,
            structs.replace(
                spec, model=found.model, model_config=described_by, draft=found.draft, model_name=found.name
            ),
        )

    async def find(*, weights: bool) -> EngineModel:
        if known is not None:
            return known
        return await in_thread(lambda: find_model(spec, adapters.hub, weights=weights))

    found = await find(weights=False)
    if not known and spec.model_path is None and found.is_bundled:
        print(f"no model given: using the bundled model '{BUNDLED}'", file=sys.stderr)
    engine = make(found)
    try:
        complete = await find(weights=True)
        if complete != found:
            await engine.close()
            found, engine = complete, make(complete)
        return StartedEngine(found, engine, await engine.start(), adapters)
    except BaseException:
        await engine.close()
        raise
