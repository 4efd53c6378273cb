"""What the routers of the served models have counted, as metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from dynamo.router import Router
from dynamo.router.stats import HIT_RATE_BOUNDS
from dynamo.runtime.instruments import Histogram, MetricFamily, Sample

_PREFIX = "dynamo_component_router"
_NUMBERS: tuple[tuple[str, str, str, Callable[[Router], int]], ...] = (
    (f"{_PREFIX}_requests_total", "counter", "Requests placed", lambda router: router.stats.requests),
    (
        f"{_PREFIX}_rejections_total",
        "counter",
        "Requests refused: all are busy",
        lambda router: router.stats.rejected,
    ),
    (f"{_PREFIX}_prompt_blocks_total", "counter", "KV blocks of prompts", lambda router: router.stats.prompt_blocks),
    (
        f"{_PREFIX}_overlap_blocks_total",
        "counter",
        "KV blocks of prompts that the chosen worker had cached",
        lambda router: router.stats.overlap_blocks,
    ),
    (
        f"{_PREFIX}_non_max_overlap_selections_total",
        "counter",
        "Choices of a worker although another had more of the prompt",
        lambda router: router.stats.non_max_overlap_selections,
    ),
    (
        f"{_PREFIX}_overlap_blocks_lost_total",
        "counter",
        "KV blocks that the others had more in those choices",
        lambda router: router.stats.overlap_blocks_lost,
    ),
    (f"{_PREFIX}_kv_events_total", "counter", "KV events applied", lambda router: router.stats.events),
    (f"{_PREFIX}_kv_snapshots_total", "counter", "Snapshots asked of workers", lambda router: router.stats.snapshots),
    (
        f"{_PREFIX}_prefix_copies_total",
        "counter",
        "Shared prefixes that idle workers were told to compute ahead",
        lambda router: router.stats.copies,
    ),
    (
        f"{_PREFIX}_copied_blocks_total",
        "counter",
        "KV blocks computed ahead",
        lambda router: router.stats.copied_blocks,
    ),
    (
        f"{_PREFIX}_active_requests",
        "gauge",
        "Requests placed that have not ended, those included that other frontends told of",
        lambda router: router.active,
    ),
    (
        f"{_PREFIX}_kv_known_blocks",
        "gauge",
        "KV blocks believed to be cached, counted once per worker",
        lambda router: router.known_blocks,
    ),
    (
        f"{_PREFIX}_replica_requests_total",
        "counter",
        "Requests that other frontends told to have placed",
        lambda router: router.stats.heard,
    ),
)


def router_metrics(prefix: str, routers: Iterable[tuple[str, Router]]) -> Iterator[MetricFamily]:
    """By the name of the model. Names of the component are fixed, those of the frontend have its prefix."""
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
    for name, kind, help, read in _NUMBERS:
        samples = [Sample(name, {"model": model}, read(router)) for model, router in routers]
        yield MetricFamily(name.removesuffix("_total"), help, kind, samples)
    name = f"{_PREFIX}_kv_hit_rate"
    rates = [sample for model, router in routers for sample in _hit_rate(router).samples(name, {"model": model})]
    yield MetricFamily(name, "Share of a prompt that the chosen worker had cached", "histogram", rates)


def _hit_rate(router: Router) -> Histogram:
    histogram = Histogram(HIT_RATE_BOUNDS)
    histogram.counts = list(router.stats.hit_rate_counts)
    histogram.total = router.stats.hit_rate_sum
    return histogram
