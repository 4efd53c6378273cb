"""Metrics of the served models' routers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct

from dynamo.frontend.measure.metrics import FrontendMetrics, ModelMetrics
from dynamo.protocols.card import WorkerType
from dynamo.router import Router
from dynamo.router.overhead import Overhead
from dynamo.router.stats import HIT_RATE_BOUNDS
from dynamo.runtime.instruments import Histogram, MetricFamily, Sample
from dynamo.serving.served_model import ServedModel

PREFIX = "dynamo_component_router"
_NUMBERS: tuple[tuple[str, str, Callable[[Router], int]], ...] = (
    ("requests_total", "Requests placed", lambda router: router.stats.requests),
    ("requests_started_total", "Requests placed, under ai-dynamo's other name", lambda router: router.stats.requests),
    ("rejections_total", "Requests refused: all are busy", lambda router: router.stats.rejected),
    ("prompt_blocks_total", "KV blocks of prompts", lambda router: router.stats.prompt_blocks),
    (
        "overlap_blocks_total",
        "KV blocks of prompts that the chosen worker had cached",
        lambda router: router.stats.overlap_blocks,
    ),
    ("kv_events_total", "KV events applied", lambda router: router.stats.events.total()),
    ("kv_snapshots_total", "Snapshots requested from workers", lambda router: router.stats.snapshots),
    (
        "prefix_copies_total",
        "Shared prefixes that idle workers were asked to compute ahead",
        lambda router: router.stats.copies,
    ),
    ("copied_blocks_total", "KV blocks computed ahead", lambda router: router.stats.copied_blocks),
    ("active_requests", "Requests placed and not ended, by any frontend", lambda router: router.active),
    (
        "kv_known_blocks",
        "KV blocks believed to be cached, counted once per worker",
        lambda router: router.known_blocks,
    ),
    ("replica_requests_total", "Requests that other frontends placed", lambda router: router.stats.replica_requests),
)
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


class LabelledRouter(Struct, frozen=True):
    """One router of a model: that of its workers, or that of those which only compute prompts."""

    router: Router
    model: ServedModel
    labels: dict[str, str]
    """`model` and `router_id`."""
    worker_type: WorkerType

    @property
    def phase(self) -> str:
        """Which part of a request its workers do."""
        return self.worker_type.value


def routers_of(router_id: int, models: Iterable[ServedModel]) -> list[LabelledRouter]:
    routers = []
    for model in models:
        labels = {"model": model.name, "router_id": str(router_id)}
        routers.append(LabelledRouter(model.router, model, labels, model.card.worker_type))
        if model.splitter and model.splitter.pool.router:
            routers.append(LabelledRouter(model.splitter.pool.router, model, labels, WorkerType.Prefill))
    return routers


def router_metrics(prefix: str, router_id: int, models: Iterable[ServedModel]) -> Iterator[MetricFamily]:
    """Metrics of the queue have the frontend's prefix, all others a fixed one."""
    models = list(models)
    routers = [one for one in routers_of(router_id, models) if one.worker_type is not WorkerType.Prefill]
    name = f"{prefix}_router_queue_pending_requests"
    waiting = [Sample(name, {"model": model.name}, model.router.waiting) for model in models]
    yield MetricFamily(name, "Requests that wait for a worker", "gauge", waiting)
    name = f"{prefix}_router_queue_pending_isl_tokens"
    tokens = [Sample(name, {"model": model.name}, model.router.waiting_tokens) for model in models]
    yield MetricFamily(name, "Tokens in the prompts of the requests that wait", "gauge", tokens)
    name = f"{prefix}_router_queue_backpressure_total"
    full = [
        Sample(name, {"model": model.name, "reason": "request_limit"}, model.router.stats.queue_full)
        for model in models
    ]
    yield MetricFamily(name.removesuffix("_total"), "Requests refused because too many wait already", "counter", full)
    for suffix, help, read in _NUMBERS:
        name = f"{PREFIX}_{suffix}"
        samples = [Sample(name, one.labels, read(one.router)) for one in routers]
        kind = "counter" if name.endswith("_total") else "gauge"
        yield MetricFamily(name.removesuffix("_total"), help, kind, samples)
    name = f"{PREFIX}_kv_hit_rate"
    rates = [sample for one in routers for sample in _hit_rate(one.router).samples(name, one.labels)]
    yield MetricFamily(name, "Share of a prompt that the chosen worker had cached", "histogram", rates)


def request_metrics(router_id: int, models: Iterable[ServedModel], metrics: FrontendMetrics) -> Iterator[MetricFamily]:
    """What the frontend has measured of routed requests, under the names that ai-dynamo's routers have for it."""
    asked = [
        (one, instruments)
        for one in routers_of(router_id, models)
        if one.worker_type is not WorkerType.Prefill and (instruments := metrics.asked(one.model.name))
    ]
    for suffix, help, read in _REQUESTS:
        name = f"{PREFIX}_{suffix}"
        samples: list[Sample] = []
        for one, instruments in asked:
            labels = {**one.labels, "phase": one.phase} if suffix == "input_sequence_tokens" else one.labels
            samples += read(instruments).samples(name, labels)
        yield MetricFamily(name, help, "histogram", samples)


def split_metrics(router_id: int, models: Iterable[ServedModel]) -> Iterator[MetricFamily]:
    """Who computed the prompts of models with decode workers, and why."""
    splitters = [(model.name, model.splitter) for model in models if model.splitter]
    name = f"{PREFIX}_disagg_decisions_total"
    decisions = [
        Sample(name, {"model": model, "prefill": "remote" if remote else "local", "reason": reason}, count)
        for model, splitter in splitters
        for (remote, reason), count in splitter.stats.decisions.items()
    ]
    help = "Requests to decode workers, by who computed the prompt and why"
    yield MetricFamily(name.removesuffix("_total"), help, "counter", decisions)
    name = f"{PREFIX}_kv_transfer_estimated_latency_seconds"
    estimates = [
        sample
        for model, splitter in splitters
        for sample in splitter.stats.transfer.samples(name, {"model": model, "router_id": str(router_id)})
        if splitter.pool.serves
    ]
    yield MetricFamily(name, "Expected time of transfer and hop of split requests", "histogram", estimates)


def _hit_rate(router: Router) -> Histogram:
    histogram = Histogram(HIT_RATE_BOUNDS)
    histogram.counts = list(router.stats.hit_rate_counts)
    histogram.total = router.stats.hit_rate_sum
    return histogram


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
