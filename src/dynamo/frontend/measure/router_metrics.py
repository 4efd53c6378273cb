"""Metrics of the served models' routers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from dynamo.frontend.measure.metrics import FrontendMetrics, ModelMetrics
from dynamo.protocols.card import WorkerType
from dynamo.router.families import PREFIX, LabelledRouter
from dynamo.router.kv_aware import KvAwareRouter
from dynamo.router.overhead import Overhead
from dynamo.runtime.metrics.instruments import Histogram, MetricFamily, Sample
from dynamo.serving.served_model import ServedModel

_OVERHEAD: tuple[tuple[str, str, Callable[[Overhead], Histogram]], ...] = (
    ("block_hashing", "Hashing a prompt's blocks", lambda overhead: overhead.hashing),
    ("indexer_find_matches", "Finding who has them cached", lambda overhead: overhead.matching),
    ("scheduling", "Weighing the workers and booking one", lambda overhead: overhead.choosing),
    ("total", "All of it; waiting for a worker to be free is not in it", lambda overhead: overhead.total),
)
_REQUESTS: tuple[tuple[str, str, Callable[[ModelMetrics], Histogram]], ...] = (
    ("time_to_first_token_seconds", "From the call of the router to the first token", lambda model: model.routed_first),
    ("inter_token_latency_seconds", "Time per token after the first", lambda model: model.inter_token),
    ("input_sequence_tokens", "Tokens in the prompts of a request", lambda model: model.input_tokens),
    ("output_sequence_tokens", "Tokens generated for a request", lambda model: model.output_sequence),
)


def routers_of(router_id: int, models: Iterable[ServedModel]) -> list[LabelledRouter]:
    routers = []
    for model in models:
        card = model.card
        about = (model.name, router_id, card.worker_type, card.kv_cache_block_size)
        routers.append(LabelledRouter(model.router, *about))
        if model.handoffs and model.handoffs.pool.router:
            prefills = (model.name, router_id, WorkerType.Prefill, card.kv_cache_block_size)
            routers.append(LabelledRouter(model.handoffs.pool.router, *prefills))
    return routers


def queue_metrics(prefix: str, models: Sequence[ServedModel]) -> Iterator[MetricFamily]:
    """They have the frontend's prefix."""
    name = f"{prefix}_router_queue_pending_requests"
    waiting = [Sample(name, {"model": model.name}, model.router.waiting) for model in models]
    yield MetricFamily(name, "Requests that wait for a worker", "gauge", waiting)
    name = f"{prefix}_router_queue_pending_isl_tokens"
    tokens = [Sample(name, {"model": model.name}, model.router.waiting_tokens) for model in models]
    yield MetricFamily(name, "Tokens in the prompts of the requests that wait", "gauge", tokens)
    name = f"{prefix}_router_queue_pending_cached_tokens"
    cached = [
        Sample(name, {"model": model.name}, model.router.waiting_cached_tokens)
        for model in models
        if isinstance(model.router, KvAwareRouter)
    ]
    yield MetricFamily(name, "Those of them that a worker had cached when they began to wait", "gauge", cached)
    name = f"{prefix}_router_queue_backpressure_total"
    full = [
        Sample(name, {"model": model.name, "reason": "request_limit"}, model.router.stats.queue_full)
        for model in models
    ]
    yield MetricFamily(name.removesuffix("_total"), "Requests refused because too many wait already", "counter", full)


def request_metrics(router_id: int, models: Iterable[ServedModel], metrics: FrontendMetrics) -> Iterator[MetricFamily]:
    """What the frontend has measured of routed requests, under the names that ai-dynamo's routers have for it."""
    asked = [
        (one, instruments)
        for one in routers_of(router_id, models)
        if one.worker_type is not WorkerType.Prefill and (instruments := metrics.asked(one.model))
    ]
    for suffix, help, read in _REQUESTS:
        name = f"{PREFIX}_{suffix}"
        samples: list[Sample] = []
        for one, instruments in asked:
            labels = {**one.labels, "phase": one.phase} if suffix == "input_sequence_tokens" else one.labels
            samples += read(instruments).samples(name, labels)
        yield MetricFamily(name, help, "histogram", samples)
    name = f"{PREFIX}_kv_worker_reused_tokens_total"
    reused = [
        Sample(name, {**one.labels, "phase": one.phase}, instruments.cached_tokens.total) for one, instruments in asked
    ]
    yield MetricFamily(name.removesuffix("_total"), "Prompt tokens that workers say they had cached", "counter", reused)


def split_metrics(router_id: int, models: Iterable[ServedModel]) -> Iterator[MetricFamily]:
    """Who computed the prompts of models with decode workers, and why."""
    handoffs = [(model.name, model.handoffs) for model in models if model.handoffs]
    name = f"{PREFIX}_disagg_decisions_total"
    decisions = [
        Sample(name, {"model": model, "prefill": "remote" if remote else "local", "reason": reason}, count)
        for model, handoffs in handoffs
        for (remote, reason), count in handoffs.stats.decisions.items()
    ]
    help = "Requests to decode workers, by who computed the prompt and why"
    yield MetricFamily(name.removesuffix("_total"), help, "counter", decisions)
    name = f"{PREFIX}_kv_transfer_estimated_latency_seconds"
    estimates = [
        sample
        for model, handoffs in handoffs
        for sample in handoffs.stats.transfer.samples(name, {"model": model, "router_id": str(router_id)})
        if handoffs.pool.serves
    ]
    yield MetricFamily(name, "Expected time of transfer and hop of split requests", "histogram", estimates)


def overhead_metrics(router_id: int, models: Iterable[ServedModel]) -> Iterator[MetricFamily]:
    """The time KV-aware routing takes, by part; routers that ignore caches have no such metrics."""
    overheads = [
        ({"model": model.name, "router_id": str(router_id)}, overhead)
        for model in models
        if (overhead := model.router.stats.overhead)
    ]
    for part, help, read in _OVERHEAD:
        name = f"dynamo_router_overhead_{part}_ms"
        samples = [sample for labels, overhead in overheads for sample in read(overhead).samples(name, labels, 1000)]
        yield MetricFamily(name, f"{help}, in milliseconds", "histogram", samples)
