"""The metrics of routers, whoever they route for: labelled families of what they count and know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct

from dynamo.protocols.card import WorkerType
from dynamo.router.kv_aware import KvAwareRouter
from dynamo.router.placement import Router
from dynamo.router.stats import HIT_RATE_BOUNDS
from dynamo.runtime.metrics.instruments import Histogram, MetricFamily, Sample

PREFIX = "dynamo_component_router"
_EVENTS = "dynamo_component_kv_cache_events_applied"
_WARNINGS = "dynamo_component_kv_cache_event_warnings"
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
_CACHED: tuple[tuple[str, str, Callable[[LabelledRouter], float]], ...] = (
    (
        "kv_selected_cached_prefix_tokens_total",
        "Prompt tokens that the chosen worker was believed to have cached",
        lambda one: one.router.stats.overlap_blocks,
    ),
    (
        "kv_best_eligible_cached_prefix_tokens_total",
        "Prompt tokens that the worker with the longest prefix was believed to have cached",
        lambda one: one.router.stats.overlap_blocks + one.router.stats.overlap_blocks_lost.total,
    ),
)


class LabelledRouter(Struct, frozen=True):
    """One router of a model: that of its workers, or that of those which only compute prompts."""

    router: Router
    model: str
    router_id: int
    worker_type: WorkerType
    block_size: int

    @property
    def labels(self) -> dict[str, str]:
        return {"model": self.model, "router_id": str(self.router_id)}

    @property
    def phase(self) -> str:
        """Which part of a request its workers do."""
        return str(self.worker_type.value)


def worker_type(kind: WorkerType) -> str:
    """A worker that both prefills and decodes is labelled as decoding, as dashboards expect."""
    return str((WorkerType.Decode if kind is WorkerType.Aggregated else kind).value)


def router_families(routers: Sequence[LabelledRouter]) -> Iterator[MetricFamily]:
    """All of it is counted where it happens or known anyway: nothing here costs a request anything."""
    answering = [one for one in routers if one.worker_type is not WorkerType.Prefill]
    for suffix, help, read in _NUMBERS:
        name = f"{PREFIX}_{suffix}"
        samples = [Sample(name, one.labels, read(one.router)) for one in answering]
        kind = "counter" if name.endswith("_total") else "gauge"
        yield MetricFamily(name.removesuffix("_total"), help, kind, samples)
    name = f"{PREFIX}_kv_hit_rate"
    rates = [sample for one in answering for sample in _hit_rate(one.router).samples(name, one.labels)]
    yield MetricFamily(name, "Share of a prompt that the chosen worker had cached", "histogram", rates)
    yield _registered(routers)
    yield _fallbacks(answering)
    by_caches = [one for one in routers if isinstance(one.router, KvAwareRouter)]
    yield from _events(by_caches)
    yield from _choices(by_caches)
    for suffix, help, blocks in _CACHED:
        name = f"{PREFIX}_{suffix}"
        samples = [Sample(name, {**one.labels, "phase": one.phase}, blocks(one) * one.block_size) for one in by_caches]
        yield MetricFamily(name.removesuffix("_total"), help, "counter", samples)
    name = f"{PREFIX}_kv_event_source_mismatch_workers"
    silent = [
        Sample(name, labels, count)
        for one in by_caches
        if isinstance(one.router, KvAwareRouter) and one.router.follower
        for labels, count in _silent(one, one.router.follower.silent_workers())
    ]
    yield MetricFamily(name, "Workers chosen by load only: what they cache is not known", "gauge", silent)


def _hit_rate(router: Router) -> Histogram:
    histogram = Histogram(HIT_RATE_BOUNDS)
    histogram.counts = list(router.stats.hit_rate_counts)
    histogram.total = router.stats.hit_rate_sum
    return histogram


def _events(routers: Iterable[LabelledRouter]) -> Iterator[MetricFamily]:
    """By model; the routers of both parts of a request are one."""
    events: Counter[tuple[str, str, str]] = Counter()
    duplicates: Counter[str] = Counter()
    for one in routers:
        for (kind, status), count in one.router.stats.events.items():
            events[one.model, kind, status] += count
        duplicates[one.model] += one.router.stats.duplicate_stores
    applied = [
        Sample(_EVENTS, {"model": model, "event_type": kind, "status": status}, count)
        for (model, kind, status), count in events.items()
    ]
    yield MetricFamily(_EVENTS, "KV events by type and by what became of them", "counter", applied)
    warnings = [
        Sample(_WARNINGS, {"model": model, "warning_kind": "duplicate_store"}, count)
        for model, count in duplicates.items()
    ]
    yield MetricFamily(_WARNINGS, "KV events that were applied but should not have come", "counter", warnings)


def _choices(routers: Iterable[LabelledRouter]) -> Iterator[MetricFamily]:
    labelled = [({**one.labels, "worker_type": worker_type(one.worker_type)}, one.router.stats) for one in routers]
    name = f"{PREFIX}_non_max_overlap_selections_total"
    choices = [Sample(name, labels, stats.non_max_overlap_selections) for labels, stats in labelled]
    help = "Choices of a worker although another had more of the prompt"
    yield MetricFamily(name.removesuffix("_total"), help, "counter", choices)
    name = f"{PREFIX}_overlap_blocks_lost"
    lost = [sample for labels, stats in labelled for sample in stats.overlap_blocks_lost.samples(name, labels)]
    yield MetricFamily(name, "KV blocks that the other had more in such a choice", "histogram", lost)


def _fallbacks(routers: Iterable[LabelledRouter]) -> MetricFamily:
    name = f"{PREFIX}_rule_fallbacks_total"
    samples = [
        Sample(name, {**one.labels, "rule": rule, "reason": reason}, count)
        for one in routers
        for rule, reasons in one.router.stats.rule_fallbacks.items()
        for reason, count in reasons.items()
    ]
    help = "Choices that the built-in rule made because the one of --router-rule failed"
    return MetricFamily(name.removesuffix("_total"), help, "counter", samples)


def _registered(routers: Iterable[LabelledRouter]) -> MetricFamily:
    name = f"{PREFIX}_worker_registered"
    # The adapters of a worker are models of their own, with its id.
    ranks = {(status.worker, worker_type(one.worker_type)): None for one in routers for status in one.router.status()}
    registered = [
        Sample(name, {"router_worker_id": str(id), "dp_rank": str(rank), "worker_type": kind}, 1)
        for (id, rank), kind in ranks
    ]
    return MetricFamily(name, "1 for each rank of a worker that requests can be sent to", "gauge", registered)


def _silent(one: LabelledRouter, ids: set[int]) -> Iterator[tuple[dict[str, str], int]]:
    """By endpoint, those without such a worker too."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for instance in one.router.instances.all():
        counts[instance.namespace, instance.component, instance.endpoint] += instance.instance_id in ids
    for (namespace, component, endpoint), count in counts.items():
        yield (
            {
                "model": one.model,
                "worker_type": worker_type(one.worker_type),
                "target_namespace": namespace,
                "target_component": component,
                "target_endpoint": endpoint,
            },
            count,
        )
