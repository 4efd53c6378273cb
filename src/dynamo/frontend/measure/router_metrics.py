"""Metrics of the served models' routers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from dynamo.frontend.measure.metrics import FrontendMetrics, ModelMetrics
from dynamo.handoff.router.handoffs import Handoffs
from dynamo.protocols.card import WorkerType
from dynamo.router.families import PREFIX, LabelledRouter
from dynamo.router.kv_aware import KvAwareRouter
from dynamo.router.stats import Overhead
from dynamo.runtime.metrics import Metric, MetricFamily, families
from dynamo.serving.served_model import ServedModel


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


class _Asked(Struct, frozen=True):
    """A router of a model that has had a request."""

    router: LabelledRouter
    model: ModelMetrics


def queue_metrics(prefix: str, models: Sequence[ServedModel]) -> list[MetricFamily]:
    """They have the frontend's prefix."""
    return families(_QUEUE, [({"model": model.name}, model) for model in models], f"{prefix}_router_queue_")


def request_metrics(router_id: int, models: Iterable[ServedModel], metrics: FrontendMetrics) -> list[MetricFamily]:
    """What the frontend has measured of routed requests, under the names that ai-dynamo's routers have for it."""
    asked = [
        (one.labels, _Asked(one, instruments))
        for one in routers_of(router_id, models)
        if one.worker_type is not WorkerType.Prefill and (instruments := metrics.asked(one.model))
    ]
    return families(_REQUESTS, asked, PREFIX)


def split_metrics(router_id: int, models: Iterable[ServedModel]) -> list[MetricFamily]:
    """Who computed the prompts of models with decode workers, and why."""
    handing_over = [(model.name, model.handoffs) for model in models if model.handoffs]
    with_router = [({"model": model, "router_id": str(router_id)}, handoffs) for model, handoffs in handing_over]
    return [
        _DECISIONS.family([({"model": model}, handoffs) for model, handoffs in handing_over], PREFIX),
        _TRANSFER.family(with_router, PREFIX),
    ]


def overhead_metrics(router_id: int, models: Iterable[ServedModel]) -> list[MetricFamily]:
    """The time KV-aware routing takes, by part; routers that ignore caches have no such metrics."""
    overheads = [
        ({"model": model.name, "router_id": str(router_id)}, overhead)
        for model in models
        if (overhead := model.router.stats.overhead)
    ]
    return families(_OVERHEAD, overheads, "dynamo_router_overhead_")


_QUEUE: tuple[Metric[ServedModel], ...] = (
    Metric("gauge", "pending_requests", "Requests that wait for a worker", lambda model: model.router.waiting),
    Metric("gauge", "pending_isl_tokens", "Tokens in the prompts of the requests that wait",
        lambda model: model.router.waiting_tokens),
    Metric("gauge", "pending_cached_tokens", "Those of them that a worker had cached when they began to wait",
        lambda model: model.router.waiting_cached_tokens if isinstance(model.router, KvAwareRouter) else None),
    Metric("counter", "backpressure_total", "Requests refused because too many wait already",
        lambda model: {("request_limit",): model.router.stats.queue_full}, ("reason",)),
)  # fmt: skip
_REQUESTS: tuple[Metric[_Asked], ...] = (
    Metric("histogram", "time_to_first_token_seconds", "From the call of the router to the first token",
        lambda asked: asked.model.routed_first),
    Metric("histogram", "inter_token_latency_seconds", "Time per token after the first",
        lambda asked: asked.model.inter_token),
    Metric("histogram", "input_sequence_tokens", "Tokens in the prompts of a request",
        lambda asked: {(asked.router.phase,): asked.model.input_tokens}, ("phase",)),
    Metric("histogram", "output_sequence_tokens", "Tokens generated for a request",
        lambda asked: asked.model.output_sequence),
    Metric("counter", "kv_worker_reused_tokens_total", "Prompt tokens that workers say they had cached",
        lambda asked: {(asked.router.phase,): asked.model.cached_tokens.total}, ("phase",)),
)  # fmt: skip
_DECISIONS: Metric[Handoffs] = Metric(
    "counter", "disagg_decisions_total", "Requests to decode workers, by who computed the prompt and why",
    lambda handoffs: {
        ("remote" if remote else "local", reason): count
        for (remote, reason), count in handoffs.stats.decisions.items()
    },
    ("prefill", "reason"),
)  # fmt: skip
_TRANSFER: Metric[Handoffs] = Metric("histogram", "kv_transfer_estimated_latency_seconds",
    "Expected time of transfer and hop of split requests",
    lambda handoffs: handoffs.stats.transfer if handoffs.pool.serves else None)  # fmt: skip
_OVERHEAD: tuple[Metric[Overhead], ...] = (
    Metric("histogram", "block_hashing_ms", "Hashing a prompt's blocks, in milliseconds",
        lambda overhead: overhead.hashing, scale=1000),
    Metric("histogram", "indexer_find_matches_ms", "Finding who has them cached, in milliseconds",
        lambda overhead: overhead.matching, scale=1000),
    Metric("histogram", "scheduling_ms", "Weighing the workers and booking one, in milliseconds",
        lambda overhead: overhead.choosing, scale=1000),
    Metric("histogram", "total_ms", "All of it; waiting for a worker to be free is not in it, in milliseconds",
        lambda overhead: overhead.total, scale=1000),
)  # fmt: skip
