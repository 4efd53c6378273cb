"""Gauges per worker: its load, and the latencies of the last request that ended there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec import Struct

from dynamo.protocols.card import ModelCard, WorkerType
from dynamo.protocols.worker_name import worker_name
from dynamo.router.families import worker_type
from dynamo.runtime.metrics import Metric, MetricFamily, families
from dynamo.serving.served_model import ServedModel

_LABELS = ("worker_id", "dp_rank", "worker_type", "worker_name")


class LastRequest(Struct, frozen=True):
    """Measures of the last request that ended at a worker."""

    time_to_first_token_seconds: float
    input_sequence_tokens: int
    inter_token_latency_seconds: float


LastRequests = dict[tuple[int, int | None], LastRequest]
"""By worker and data-parallel rank."""


class _WorkerLoads(Struct, frozen=True):
    """The load of the workers, by their labels."""

    blocks: Counter[tuple[str, ...]]
    tokens: Counter[tuple[str, ...]]


def worker_gauges(prefix: str, models: Iterable[ServedModel], last_requests: LastRequests) -> list[MetricFamily]:
    """Workers that left get no series and are removed from `last_requests`. Several models are versions of one name."""
    models = list(models)
    names: dict[str, list[ServedModel]] = {}
    for model in models:
        names.setdefault(model.name, []).append(model)
    # The adapters of a worker are models of their own, with its id.
    loads = _WorkerLoads(Counter(), Counter())
    for model in models:
        for load in model.router.loads():
            worker = tuple(_labels(model.card, *load.worker).values())
            loads.blocks[worker] += load.decode_blocks
            loads.tokens[worker] += load.prefill_tokens
    cards = {id: model.card for model in models for id in model.router.instances.ids()}
    for gone in [worker for worker in last_requests if worker[0] not in cards]:
        del last_requests[gone]
    last = [(_labels(cards[id], id, rank), request) for (id, rank), request in last_requests.items()]
    return [
        _WORKERS.family([({"model": name}, versions) for name, versions in names.items()], f"{prefix}_"),
        *families(_LOADS, [({}, loads)], f"{prefix}_worker_"),
        *families(_LAST, last, f"{prefix}_worker_last_"),
    ]


def waiting_gauge(prefix: str, waiting: Mapping[str, int]) -> MetricFamily:
    """What an autoscaler sees of a model without workers."""
    return _WAITING.family([({}, waiting)], f"{prefix}_")


def ready_gauge(prefix: str, readiness: Mapping[str, bool]) -> MetricFamily:
    return _READY.family([({}, readiness)], f"{prefix}_")


def _counts(versions: list[ServedModel]) -> dict[tuple[str, ...], float]:
    workers = sum(len(model.router.instances) for model in versions)
    counts: dict[tuple[str, ...], float] = {(WorkerType.Decode.value,): workers}
    if handoffs := versions[0].handoffs:  # they share the workers that compute prompts
        counts[WorkerType.Prefill.value,] = len(handoffs.pool)
    return counts


def _labels(card: ModelCard, worker_id: int, dp_rank: int | None) -> dict[str, str]:
    values = (str(worker_id), str(dp_rank or 0), worker_type(card.worker_type), worker_name(worker_id))
    return dict(zip(_LABELS, values, strict=True))


_WORKERS: Metric[list[ServedModel]] = Metric("gauge", "model_workers", "Workers that take requests", _counts,
    ("worker_type",))  # fmt: skip
_LOADS: tuple[Metric[_WorkerLoads], ...] = (
    Metric("gauge", "active_decode_blocks", "KV blocks in use", lambda loads: loads.blocks, _LABELS),
    Metric(
        "gauge", "active_prefill_tokens", "Prompt tokens without a first output", lambda loads: loads.tokens, _LABELS
    ),
)
_READY: Metric[Mapping[str, bool]] = Metric("gauge", "model_ready", "1 when requests to a registered model are served",
    lambda readiness: {(model,): int(ready) for model, ready in readiness.items()}, ("model",))  # fmt: skip
_WAITING: Metric[Mapping[str, int]] = Metric("gauge", "model_waiting_requests",
    "Requests that wait for a worker of a model that has none",
    lambda waiting: {(name,): count for name, count in waiting.items()}, ("model",))  # fmt: skip
_LAST: tuple[Metric[LastRequest], ...] = (
    Metric("gauge", "time_to_first_token_seconds", "Time to the first token of the last request that ended there",
        lambda last: last.time_to_first_token_seconds),
    Metric("gauge", "input_sequence_tokens", "Prompt tokens of that request", lambda last: last.input_sequence_tokens),
    Metric("gauge", "inter_token_latency_seconds", "Time per token after the first of that request",
        lambda last: last.inter_token_latency_seconds),
)  # fmt: skip
