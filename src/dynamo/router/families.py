"""The metrics of routers, whoever they route for: labelled families of what they count and know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from dynamo.protocols.card import WorkerType
from dynamo.protocols.worker_name import worker_name
from dynamo.router.kv_aware import KvAwareRouter
from dynamo.router.placement import Router
from dynamo.router.stats import HIT_RATE_BOUNDS
from dynamo.runtime.metrics import Histogram, Metric, MetricFamily, families

PREFIX = "dynamo_component_router_"


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

    def hit_rate(self) -> Histogram:
        histogram = Histogram(HIT_RATE_BOUNDS)
        histogram.counts = list(self.router.stats.hit_rate_counts)
        histogram.total = self.router.stats.hit_rate_sum
        return histogram


def worker_type(kind: WorkerType) -> str:
    """A worker that both prefills and decodes is labelled as decoding, as dashboards expect."""
    return str((WorkerType.Decode if kind is WorkerType.Aggregated else kind).value)


def router_families(routers: Sequence[LabelledRouter]) -> list[MetricFamily]:
    """All of it is counted where it happens or known anyway: nothing here costs a request anything."""
    answering = [(one.labels, one) for one in routers if one.worker_type is not WorkerType.Prefill]
    by_caches = [one for one in routers if isinstance(one.router, KvAwareRouter)]
    return [
        *families(_ANSWERING, answering, PREFIX),
        _REGISTERED.family([({}, routers)], PREFIX),
        _FALLBACKS.family(answering, PREFIX),
        *families(_EVENTS, [({}, by_caches)]),
        *families(
            _CHOICES, [({**one.labels, "worker_type": worker_type(one.worker_type)}, one) for one in by_caches], PREFIX
        ),
        *families(_CACHED, [({**one.labels, "phase": one.phase}, one) for one in by_caches], PREFIX),
        _SILENT.family([({}, by_caches)], PREFIX),
    ]


def _registered(routers: Sequence[LabelledRouter]) -> dict[tuple[str, ...], float]:
    # The adapters of a worker are models of their own, with its id.
    ranks = {(status.worker, worker_type(one.worker_type)): None for one in routers for status in one.router.status()}
    return {(str(id), str(rank), kind, worker_name(id)): 1 for (id, rank), kind in ranks}


def _events(routers: Sequence[LabelledRouter]) -> Counter[tuple[str, ...]]:
    """By model; the routers of both parts of a request are one."""
    events: Counter[tuple[str, ...]] = Counter()
    for one in routers:
        for (kind, status), count in one.router.stats.events.items():
            events[one.model, kind, status] += count
    return events


def _duplicates(routers: Sequence[LabelledRouter]) -> Counter[tuple[str, ...]]:
    duplicates: Counter[tuple[str, ...]] = Counter()
    for one in routers:
        duplicates[one.model, "duplicate_store"] += one.router.stats.duplicate_stores
    return duplicates


def _silent(routers: Sequence[LabelledRouter]) -> Counter[tuple[str, ...]]:
    """By endpoint, those without such a worker too."""
    counts: Counter[tuple[str, ...]] = Counter()
    for one in routers:
        if isinstance(one.router, KvAwareRouter) and one.router.follower:
            ids, kind = one.router.follower.silent_workers(), worker_type(one.worker_type)
            for instance in one.router.instances.all():
                endpoint = (instance.namespace, instance.component, instance.endpoint)
                counts[one.model, kind, *endpoint] += instance.instance_id in ids
    return counts


_ANSWERING: tuple[Metric[LabelledRouter], ...] = (
    Metric("counter", "requests_total", "Requests placed", lambda one: one.router.stats.requests),
    Metric("counter", "requests_started_total", "Requests placed, under ai-dynamo's other name",
        lambda one: one.router.stats.requests),
    Metric("counter", "rejections_total", "Requests refused: all are busy", lambda one: one.router.stats.rejected),
    Metric("counter", "prompt_blocks_total", "KV blocks of prompts", lambda one: one.router.stats.prompt_blocks),
    Metric("counter", "overlap_blocks_total", "KV blocks of prompts that the chosen worker had cached",
        lambda one: one.router.stats.overlap_blocks),
    Metric("counter", "kv_events_total", "KV events applied", lambda one: one.router.stats.events.total()),
    Metric("counter", "kv_snapshots_total", "Snapshots requested from workers", lambda one: one.router.stats.snapshots),
    Metric("counter", "prefix_copies_total", "Shared prefixes that idle workers were asked to compute ahead",
        lambda one: one.router.stats.copies),
    Metric("counter", "copied_blocks_total", "KV blocks computed ahead", lambda one: one.router.stats.copied_blocks),
    Metric("gauge", "active_requests", "Requests placed and not ended, by any frontend", lambda one: one.router.active),
    Metric("gauge", "kv_known_blocks", "KV blocks believed to be cached, counted once per worker",
        lambda one: one.router.known_blocks),
    Metric("counter", "replica_requests_total", "Requests that other frontends placed",
        lambda one: one.router.stats.replica_requests),
    Metric("histogram", "kv_hit_rate", "Share of a prompt that the chosen worker had cached",
        lambda one: one.hit_rate()),
)  # fmt: skip
_REGISTERED: Metric[Sequence[LabelledRouter]] = Metric("gauge", "worker_registered",
    "1 for each rank of a worker that requests can be sent to", _registered,
    ("router_worker_id", "dp_rank", "worker_type", "worker_name"))  # fmt: skip
_FALLBACKS: Metric[LabelledRouter] = Metric("counter", "rule_fallbacks_total",
    "Choices that the built-in rule made because the one of --router-rule failed",
    lambda one: {
        (rule, reason): count
        for rule, reasons in one.router.stats.rule_fallbacks.items()
        for reason, count in reasons.items()
    }, ("rule", "reason"))  # fmt: skip
_EVENTS: tuple[Metric[Sequence[LabelledRouter]], ...] = (
    Metric("counter", "dynamo_component_kv_cache_events_applied", "KV events by type and by what became of them",
        _events, ("model", "event_type", "status")),
    Metric("counter", "dynamo_component_kv_cache_event_warnings",
        "KV events that were applied but should not have come", _duplicates, ("model", "warning_kind")),
)  # fmt: skip
_CHOICES: tuple[Metric[LabelledRouter], ...] = (
    Metric("counter", "non_max_overlap_selections_total", "Choices of a worker although another had more of the prompt",
        lambda one: one.router.stats.non_max_overlap_selections),
    Metric("histogram", "overlap_blocks_lost", "KV blocks that the other had more in such a choice",
        lambda one: one.router.stats.overlap_blocks_lost),
)  # fmt: skip
_CACHED: tuple[Metric[LabelledRouter], ...] = (
    Metric("counter", "kv_selected_cached_prefix_tokens_total",
        "Prompt tokens that the chosen worker was believed to have cached",
        lambda one: one.block_size * one.router.stats.overlap_blocks),
    Metric("counter", "kv_best_eligible_cached_prefix_tokens_total",
        "Prompt tokens that the worker with the longest prefix was believed to have cached",
        lambda one: one.block_size * (one.router.stats.overlap_blocks + one.router.stats.overlap_blocks_lost.total)),
)  # fmt: skip
_SILENT: Metric[Sequence[LabelledRouter]] = Metric("gauge", "kv_event_source_mismatch_workers",
    "Workers chosen by load only: what they cache is not known", _silent,
    ("model", "worker_type", "target_namespace", "target_component", "target_endpoint"))  # fmt: skip
