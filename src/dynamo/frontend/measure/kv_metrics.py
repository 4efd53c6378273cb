"""Metrics of KV-aware routers: which caches they know, and what their choices made of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from dynamo.frontend.measure.metrics import FrontendMetrics
from dynamo.frontend.measure.router_metrics import PREFIX, LabelledRouter, routers_of
from dynamo.frontend.measure.worker_metrics import worker_type
from dynamo.protocols.card import WorkerType
from dynamo.router.kv_aware import KvAwareRouter
from dynamo.runtime.instruments import MetricFamily, Sample
from dynamo.serving.served_model import ServedModel

_EVENTS = "dynamo_component_kv_cache_events_applied"
_WARNINGS = "dynamo_component_kv_cache_event_warnings"
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


def kv_metrics(
    prefix: str, router_id: int, models: Iterable[ServedModel], metrics: FrontendMetrics
) -> Iterator[MetricFamily]:
    """All of it is counted where it happens or known anyway: nothing here costs a request anything."""
    every = routers_of(router_id, models)
    routers = [one for one in every if isinstance(one.router, KvAwareRouter)]
    yield from _events(routers)
    yield from _choices(routers)
    yield from _cached_tokens(routers, metrics)
    yield _registered(every)
    name = f"{PREFIX}_kv_event_source_mismatch_workers"
    silent = [
        Sample(name, labels, count)
        for one in routers
        if isinstance(one.router, KvAwareRouter) and one.router.follower
        for labels, count in _silent(one, one.router.follower.silent_workers())
    ]
    yield MetricFamily(name, "Workers chosen by load only: what they cache is not known", "gauge", silent)
    name = f"{prefix}_router_queue_pending_cached_tokens"
    waiting = [
        Sample(name, {"model": one.model.name}, one.router.waiting_cached_tokens)
        for one in routers
        if isinstance(one.router, KvAwareRouter) and one.worker_type is not WorkerType.Prefill
    ]
    yield MetricFamily(name, "Those of them that a worker had cached when they began to wait", "gauge", waiting)


def _events(routers: Iterable[LabelledRouter]) -> Iterator[MetricFamily]:
    """By model; the routers of both parts of a request are one."""
    events: Counter[tuple[str, str, str]] = Counter()
    duplicates: Counter[str] = Counter()
    for one in routers:
        for (kind, status), count in one.router.stats.events.items():
            events[one.model.name, kind, status] += count
        duplicates[one.model.name] += one.router.stats.duplicate_stores
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


def _cached_tokens(routers: Iterable[LabelledRouter], metrics: FrontendMetrics) -> Iterator[MetricFamily]:
    for suffix, help, blocks in _CACHED:
        name = f"{PREFIX}_{suffix}"
        samples = [
            Sample(name, {**one.labels, "phase": one.phase}, blocks(one) * one.model.card.kv_cache_block_size)
            for one in routers
        ]
        yield MetricFamily(name.removesuffix("_total"), help, "counter", samples)
    name = f"{PREFIX}_kv_worker_reused_tokens_total"
    reused = [
        Sample(name, {**one.labels, "phase": one.phase}, asked.cached_tokens.total)
        for one in routers
        if one.worker_type is not WorkerType.Prefill and (asked := metrics.asked(one.model.name))
    ]
    yield MetricFamily(name.removesuffix("_total"), "Prompt tokens that workers say they had cached", "counter", reused)


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
                "model": one.model.name,
                "worker_type": worker_type(one.worker_type),
                "target_namespace": namespace,
                "target_component": component,
                "target_endpoint": endpoint,
            },
            count,
        )
