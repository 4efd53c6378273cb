"""Serves an engine at an endpoint, with its model's card and all it declares: KV events, load, metrics, controls."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from dynamo.engines.base import (
    CacheOwner,
    Controllable,
    Engine,
    EngineHandoff,
    KvSocketSource,
    KvSource,
    KvTierSource,
    LoadSource,
    MetricsSource,
    RankLoad,
    WorkerHandoff,
)
from dynamo.handoff.worker.by_engine import EnginePrefillWorker, engine_decode_worker
from dynamo.handoff.worker.decode import DecodeWorker
from dynamo.handoff.worker.prefill import PrefillWorker
from dynamo.kv.messages import KvChange
from dynamo.kv.publish.engine_listener import listen
from dynamo.kv.publish.feed import component_of, kv_feed
from dynamo.kv.publish.load_metrics import WorkerMetricsPublisher
from dynamo.kv.publish.translate import EngineRank
from dynamo.model.registration import put_card, remove_card
from dynamo.protocols.card import ModelCard, ModelInput, WorkerType
from dynamo.protocols.engine import PreprocessedRequest
from dynamo.protocols.errors import Unavailable
from dynamo.runtime import Context, Endpoint
from dynamo.runtime.discovery import Put
from dynamo.runtime.metrics import Labels, Metric, MetricFamily, families
from dynamo.runtime.names import CLEAR_ENDPOINT
from dynamo.runtime.plane.admission import RequestLimit
from dynamo.runtime.status import endpoint_labels
from dynamo.runtime.stream import Handler, Outlet
from dynamo.worker.control import offer_control, serve_beside
from dynamo.worker.health import health_check_payload


def engine_handler(engine: Engine) -> Handler:
    """A handler that passes requests and cancellations to the engine and its output to the outlet."""

    def handle(request: Any, context: Context, outlet: Outlet) -> None:
        running = engine.generate(request, outlet)
        context.on_stop(lambda _: running.abort())

    return handle


async def serve_engine(endpoint: Endpoint, engine: Engine, model: str | None = None) -> None:
    """Serve until the runtime shuts down. The engine must have started; its owner closes it afterwards.

    `model` is the name in its metrics.
    """
    # Before the endpoint: a router that finds it must also find its events, load and clearing endpoint.
    await publish_engine(endpoint, engine, model)
    await serve_requests(endpoint, engine, model)


async def publish_engine(
    endpoint: Endpoint, engine: Engine, model: str | None = None, *, kv_events: bool = True
) -> None:
    """Publish what the engine declares besides answering."""
    if isinstance(engine, KvSource) and kv_events:
        await publish_kv_events(endpoint, engine)
    if isinstance(engine, KvSocketSource) and kv_events:
        await relay_kv_events(endpoint, engine)
    if isinstance(engine, LoadSource):
        gauges = CacheGauges()
        await publish_load(endpoint, engine, gauges)
        _show(endpoint, gauges.families, model)
    if isinstance(engine, CacheOwner):
        await offer_clearing(endpoint, engine)
    await offer_control(endpoint)
    if status := endpoint.runtime.status:
        if isinstance(engine, MetricsSource):
            status.add_registry(engine.metrics_registry(), _labels(endpoint, model))
        if isinstance(engine, Controllable):
            status.add_controls(engine.controls(), endpoint.runtime.config.tcp.token)


async def serve_requests(
    endpoint: Endpoint,
    engine: Engine,
    model: str | None = None,
    card: ModelCard | None = None,
    limit: RequestLimit | None = None,
) -> None:
    """The card says which part of a request this worker does; without it, all."""
    request_type = PreprocessedRequest if engine.model_input is ModelInput.Tokens else Any
    async with _open_handler(endpoint, engine, card) as handler:
        await endpoint.serve(
            handler,
            request_type,
            metrics_labels=[("model", model), ("model_name", model)] if model else (),
            health_check_payload=health_check_payload(engine, model or ""),
            limit=limit,
        )


@asynccontextmanager
async def _open_handler(endpoint: Endpoint, engine: Engine, card: ModelCard | None) -> AsyncIterator[Handler]:
    role = WorkerType.Aggregated if card is None else card.worker_type
    if card is None or role is WorkerType.Aggregated or not isinstance(engine, WorkerHandoff | EngineHandoff):
        yield engine_handler(engine)
        return
    if not isinstance(engine, WorkerHandoff):
        if role is WorkerType.Prefill:
            prefills = EnginePrefillWorker(engine)
            _show(endpoint, prefills.families, card.name)
            yield prefills
        else:
            yield engine_decode_worker(engine)
        return
    worker: PrefillWorker | DecodeWorker
    if role is WorkerType.Prefill:
        worker = PrefillWorker(engine, endpoint)
        host, port = card.runtime_config.bootstrap_host, card.runtime_config.bootstrap_port
        await worker.start((host, port) if host and port else None)
    else:
        worker = DecodeWorker(engine, engine, endpoint.runtime)
    _show(endpoint, worker.metrics.families, card.name)
    try:
        yield worker
    finally:
        await worker.close()


def _show(endpoint: Endpoint, metrics: Callable[[Labels], list[MetricFamily]], model: str | None) -> None:
    if status := endpoint.runtime.status:
        labels = _labels(endpoint, model)
        status.add_families(lambda: metrics(labels))


def _labels(endpoint: Endpoint, model: str | None) -> Labels:
    return endpoint_labels(endpoint.id, endpoint.runtime.instance_id, [("model", model)] if model else ())


async def publish_kv_events(endpoint: Endpoint, engine: KvSource) -> None:
    """Publish the changes of the engine's blocks to the routers, which may also request a snapshot."""
    await endpoint.runtime.start()
    feed = kv_feed(endpoint)

    def publish(dp_rank: int, changes: list[KvChange]) -> None:
        rank = feed.rank(dp_rank)
        for change in changes:
            rank.publish(change)

    engine.on_kv_events(publish)
    if isinstance(engine, KvTierSource):
        engine.on_kv_tier_events(lambda dp_rank, tier, change: feed.rank(dp_rank).publish(change, tier))
    await feed.ready()


async def relay_kv_events(endpoint: Endpoint, engine: KvSocketSource) -> None:
    """Relay to the routers the events that the engine publishes on its own ZMQ sockets."""
    await endpoint.runtime.start()
    component, feed = component_of(endpoint), kv_feed(endpoint)
    for socket in engine.kv_sockets():
        rank = EngineRank(feed.rank(socket.dp_rank), socket.block_size)
        listen(component, rank, socket.address, socket.topic, socket.replay_address)
    await feed.ready()


async def publish_load(endpoint: Endpoint, engine: LoadSource, gauges: CacheGauges) -> None:
    publisher = WorkerMetricsPublisher()
    await publisher.create_endpoint(endpoint)

    def publish(load: RankLoad) -> None:
        gauges.report(load)
        publisher.publish(
            load.dp_rank,
            load.active_decode_blocks,
            load.kv_used_blocks,
            active_prefill_tokens=load.active_prefill_tokens,
            kv_total_blocks=load.kv_total_blocks,
            host_weight=load.host_weight,
            disk_weight=load.disk_weight,
            draft_tokens=load.draft_tokens,
            accepted_tokens=load.accepted_tokens,
            tiers=load.tiers,
        )

    engine.on_load(publish)


async def offer_clearing(endpoint: Endpoint, engine: CacheOwner) -> None:
    """Serve an endpoint beside the engine's that empties its prefix cache."""

    async def clear(request: Any) -> AsyncIterator[Any]:
        if not await engine.clear_cache():
            raise Unavailable("the cache cannot be cleared while requests run")
        yield {"status": "success", "message": "KV cache cleared"}

    await serve_beside(endpoint, CLEAR_ENDPOINT, clear)


class CacheGauges:
    """The gauges of the KV cache, from the last report of each rank."""

    def __init__(self) -> None:
        self._loads: dict[int, RankLoad] = {}

    def report(self, load: RankLoad) -> None:
        self._loads[load.dp_rank] = load

    def families(self, labels: Labels) -> list[MetricFamily]:
        return families(
            _METRICS, [({**labels, "dp_rank": str(rank)}, load) for rank, load in sorted(self._loads.items())]
        )


def _cache_usage(load: RankLoad) -> float | None:
    if not load.kv_total_blocks:
        return None
    return max(load.kv_used_blocks or 0, load.active_decode_blocks or 0) / load.kv_total_blocks


_METRICS: tuple[Metric[RankLoad], ...] = (
    Metric("gauge", "dynamo_component_total_blocks", "KV blocks of a rank", lambda load: load.kv_total_blocks or None),
    Metric("gauge", "dynamo_component_gpu_cache_usage_percent", "Share of them in use, 0 to 1", _cache_usage),
    Metric(
        "counter", "dynamo_component_draft_tokens_total", "Tokens guessed ahead", lambda load: load.draft_tokens or None
    ),
    Metric(
        "counter", "dynamo_component_accepted_draft_tokens_total", "Guessed tokens that the model would have chosen",
        lambda load: load.accepted_tokens if load.draft_tokens else None,
    ),
)  # fmt: skip


@asynccontextmanager
async def register_and_serve(
    endpoint: Endpoint, engine: Engine, card: ModelCard, limit: RequestLimit | None = None
) -> AsyncIterator[ModelCard]:
    """Register and serve an engine that answers, with its complete card as listed; at the end, leave and drain."""
    runtime = endpoint.runtime
    card = await put_card(endpoint, card)
    serving = asyncio.create_task(serve_requests(endpoint, engine, card.name, card, limit))
    try:
        await _wait_until_listed(endpoint, serving)
        yield card
    finally:
        if not runtime.is_shutting_down:
            serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving
        if not runtime.is_shutting_down:  # otherwise the runtime takes all its records with it
            await remove_card(endpoint)


async def _wait_until_listed(endpoint: Endpoint, serving: asyncio.Task[None]) -> None:
    """Wait until discovery lists the instance; if serving fails first, raise its error."""

    async def watch() -> None:
        async with contextlib.aclosing(endpoint.runtime.discovery.watch(endpoint.instance_key)) as changes:
            async for change in changes:
                if isinstance(change, Put):
                    return

    seen = asyncio.create_task(watch())
    await asyncio.wait({seen, serving}, return_when=asyncio.FIRST_COMPLETED)
    seen.cancel()
    await asyncio.gather(seen, return_exceptions=True)
    if serving.done():
        await serving
