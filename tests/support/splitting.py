"""Prefill and decode workers of the bundled model in this process, and requests that are split between them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from msgspec import structs

from dynamo.engines.base import EngineInfo
from dynamo.engines.mocker import MockerArgs, MockerEngine
from dynamo.handoff.pairing import TRANSFER
from dynamo.handoff.router.handoffs import Handoffs
from dynamo.handoff.worker.by_engine import EngineHandoffEngine
from dynamo.handoff.worker.prefill import WorkerHandoffEngine
from dynamo.model import HubConfig, LocalModel, build_card
from dynamo.model.source import bundled
from dynamo.protocols.card import ModelCard, ModelRuntimeConfig, ModelType, WorkerType
from dynamo.protocols.engine import PreprocessedRequest
from dynamo.router import RoutingConfig
from dynamo.router.config import RequestBackoff
from dynamo.router.delivery.delivery import Delivery, DeliveryOptions
from dynamo.runtime import Context, DistributedRuntime, Endpoint, EndpointId, Local, RuntimeConfig
from dynamo.runtime.tracing.endpoint_spans import EndpointSpans
from dynamo.serving.models import Models
from dynamo.serving.served_model import ServedModel
from dynamo.settings.router import HandoffConfig
from dynamo.worker.life import publish_and_serve
from support.sinks import Kept
from support.waiting import until

SplitEngine = WorkerHandoffEngine | EngineHandoffEngine
ALWAYS = RoutingConfig(conditional_disagg_config=HandoffConfig(policy="always"))


class InProcessWorker:
    """A worker from its start to `leave`, which drains it, or `die`, which does not."""

    def __init__(self, local: Local, engine: SplitEngine, info: EngineInfo, component: str, **card: Any) -> None:
        network = structs.replace(RuntimeConfig.in_process({}), graceful_shutdown_timeout=60.0)
        self.runtime = DistributedRuntime(config=network, local=local)
        self.engine: Any = engine
        self._endpoint = Endpoint(self.runtime, EndpointId("ns", component))
        self._card = worker_card(info, engine.transfer, **card)
        self._serving: asyncio.Task[None] | None = None
        self._up = asyncio.Event()

    @property
    def id(self) -> int:
        return self.runtime.instance_id

    async def start(self) -> None:
        await self.runtime.start()
        self._serving = asyncio.create_task(self._serve())
        up = asyncio.create_task(self._up.wait())
        await asyncio.wait({up, self._serving}, return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        if self._serving.done():
            self._serving.result()

    async def _serve(self) -> None:
        async with publish_and_serve(self._endpoint, self.engine, self._card):
            self._up.set()
            await self.runtime.wait_for_shutdown()

    async def leave(self) -> None:
        self.runtime.shutdown()
        await self.gone()

    async def die(self) -> None:
        self.runtime.shutdown(drain=False)
        await self.engine.close()
        await self.gone()

    async def gone(self) -> None:
        assert self._serving
        await asyncio.gather(self._serving, return_exceptions=True)
        await self.engine.close()
        await self.runtime.close()


def worker_card(info: EngineInfo, transfer: str, **more: Any) -> ModelCard:
    return build_card(
        LocalModel(source="tiny", path=bundled()),
        name="m",
        model_type=ModelType.Backend,
        worker_type=info.worker_type,
        context_length=info.context_length,
        kv_cache_block_size=info.kv_cache_block_size or 16,
        migration_limit=3,
        runtime_config=ModelRuntimeConfig(
            total_kv_blocks=info.total_kv_blocks,
            runtime_data={TRANSFER: transfer} if info.worker_type is not WorkerType.Aggregated else {},
            **more,
        ),
    )


class SplitStack:
    """The frontend's half of a request, without HTTP, and workers of the mocker or of any other engine."""

    def __init__(self, config: RoutingConfig = ALWAYS, spans: EndpointSpans | None = None) -> None:
        """`spans` are those of the workers."""
        self._local = Local()
        self._spans = spans
        self.config = config
        self.runtime = DistributedRuntime(config=RuntimeConfig.in_process({}), local=self._local)
        self.models = Models(self.runtime, config, HubConfig.from_env({"HF_HUB_OFFLINE": "1"}))
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> SplitStack:
        await self.runtime.start()
        self._stack.push_async_callback(self.runtime.close)
        await self.models.start()
        self._stack.push_async_callback(self.models.close)
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self._stack.aclose()

    async def mocker(self, mode: str, **args: Any) -> InProcessWorker:
        """Blocks of 16 tokens, and no time for anything, unless arguments say otherwise."""
        asked = {"block_size": 16, "speedup_ratio": 0.0, "kv_transfer_bandwidth": 0.0, "num_gpu_blocks": 512, **args}
        engine = MockerEngine(MockerArgs(disaggregation_mode=mode, max_model_len=2048, **asked))  # type: ignore[arg-type]
        return await self.worker(engine, await engine.start())

    async def worker(self, engine: SplitEngine, info: EngineInfo, **card: Any) -> InProcessWorker:
        component = {WorkerType.Aggregated: "backend"}.get(info.worker_type, info.worker_type.value)
        worker = InProcessWorker(self._local, engine, info, component, **card)
        worker.runtime.spans = self._spans
        await worker.start()
        self._stack.push_async_callback(worker.leave)
        return worker

    async def until_known(self, *, prefills: int) -> None:
        await until(lambda: len(self.handoffs.pool.instances) == prefills)

    @property
    def model(self) -> ServedModel:
        return self.models.get("m")

    @property
    def handoffs(self) -> Handoffs:
        handoffs = self.model.handoffs
        assert handoffs
        return handoffs

    @property
    def reasons(self) -> dict[tuple[bool, str], int]:
        return dict(self.handoffs.stats.decisions)

    async def ready(self, *, prefills: int = 1) -> None:
        await self.models.wait_for("m")
        await self.until_known(prefills=prefills)

    def delivery(self, request: PreprocessedRequest, context: Context, sink: Kept) -> Delivery:
        model = self.model
        return Delivery(
            partial(model.router.place, group=object()),
            model.router.instances,
            request,
            context,
            sink,
            DeliveryOptions(limit=3, backoff=lambda: RequestBackoff(first=0.001), beside=self.handoffs.begin),
        )

    async def ask(self, request: PreprocessedRequest) -> tuple[Kept, Delivery]:
        context, sink = Context(), Kept()
        delivery = self.delivery(request, context, sink)
        try:
            await delivery.start()
            await sink.done
        finally:
            context.kill()
            await delivery.close()
        return sink, delivery


def held(worker: InProcessWorker) -> int:
    """The blocks that a mocker's requests and offers hold."""
    engine = worker.engine
    assert isinstance(engine, MockerEngine)
    return sum(scheduler.pool.used for scheduler in engine.ranks.schedulers)
