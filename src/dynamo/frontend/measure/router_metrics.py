"""Metrics of the served models' routers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from dynamo.router import Router
from dynamo.router.overhead import Overhead
from dynamo.router.stats import HIT_RATE_BOUNDS
from dynamo.runtime.instruments import Histogram, MetricFamily, Sample
from dynamo.serving.served_model import ServedModel

_PREFIX = "dynamo_component_router"
_NUMBERS: tuple[tuple[str, str, Callable[[Router], int]], ...] = (
    ("requests_total", "Requests placed", lambda router: router.stats.requests),
    ("rejections_total", "Requests refused: all are busy", lambda router: router.stats.rejected),
    ("prompt_blocks_total", "KV blocks of prompts", lambda router: router.stats.prompt_blocks),
    (
        "overlap_blocks_total",
        "KV blocks of prompts that the chosen worker had cached",
        lambda router: router.stats.overlap_blocks,
    ),
    (
        "non_max_overlap_selections_total",
        "Choices of a worker although another had more of the prompt",
        lambda router: router.stats.non_max_overlap_selections,
    ),
    (
        "overlap_blocks_lost_total",
        "KV blocks that the others had more in those choices",
        lambda router: router.stats.overlap_blocks_lost,
    ),
    ("kv_events_total", "KV events applied", lambda router: router.stats.events),
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


def router_metrics(prefix: str, routers: Iterable[tuple[str, Router]]) -> Iterator[MetricFamily]:
    """Labelled by model. Metrics of the queue have the frontend's prefix, all others a fixed one."""
    routers = list(routers)
    name = f"{prefix}_router_queue_pending_requests"
    waiting = [Sample(name, {"model": model}, router.waiting) for model, router in routers]
    yield MetricFamily(name, "Requests that wait for a worker", "gauge", waiting)
    name = f"{prefix}_router_queue_pending_isl_tokens"
    tokens = [Sample(name, {"model": model}, router.waiting_tokens) for model, router in routers]
    yield MetricFamily(name, "Tokens in the prompts of the requests that wait", "gauge", tokens)
    name = f"{prefix}_router_queue_backpressure_total"
    full = [
        Sample(name, {"model": model, "reason": "request_limit"}, router.stats.queue_full) for model, router in routers
    ]
    yield MetricFamily(name.removesuffix("_total"), "Requests refused because too many wait already", "counter", full)
    for suffix, help, read in _NUMBERS:
        name = f"{_PREFIX}_{suffix}"
        samples = [Sample(name, {"model": model}, read(router)) for model, router in routers]
        kind = "counter" if name.endswith("_total") else "gauge"
        yield MetricFamily(name.removesuffix("_total"), help, kind, samples)
    name = f"{_PREFIX}_kv_hit_rate"
    rates = [sample for model, router in routers for sample in _hit_rate(router).samples(name, {"model": model})]
    yield MetricFamily(name, "Share of a prompt that the chosen worker had cached", "histogram", rates)


def split_metrics(models: Iterable[ServedModel]) -> Iterator[MetricFamily]:
    """Who computed the prompts of models with decode workers, and why."""
    splitters = [(model.name, model.splitter) for model in models if model.splitter]
    name = f"{_PREFIX}_disagg_decisions_total"
    decisions = [
        Sample(name, {"model": model, "prefill": "remote" if remote else "local", "reason": reason}, count)
        for model, splitter in splitters
        for (remote, reason), count in splitter.stats.decisions.items()
    ]
    help = "Requests to decode workers, by who computed the prompt and why"
    yield MetricFamily(name.removesuffix("_total"), help, "counter", decisions)
    name = f"{_PREFIX}_kv_transfer_estimated_latency_seconds"
    estimates = [
        sample
        for model, splitter in splitters
        for sample in splitter.stats.transfer.samples(name, {"model": model})
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
