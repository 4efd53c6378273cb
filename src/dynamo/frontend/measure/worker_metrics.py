"""Gauges per worker: its load, and the latencies of the last request that ended there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec import Struct

from dynamo.protocols.card import ModelCard, WorkerType
from dynamo.router.families import worker_type
from dynamo.runtime.metrics.instruments import MetricFamily, Sample
from dynamo.serving.served_model import ServedModel

_LAST = {
    "time_to_first_token_seconds": "Time to the first token of the last request that ended there",
    "input_sequence_tokens": "Prompt tokens of that request",
    "inter_token_latency_seconds": "Time per token after the first of that request",
}

_LABELS = ("worker_id", "dp_rank", "worker_type")


class LastRequest(Struct, frozen=True):
    """Measures of the last request that ended at a worker; the fields are named like the metrics."""

    time_to_first_token_seconds: float
    input_sequence_tokens: int
    inter_token_latency_seconds: float


LastRequests = dict[tuple[int, int | None], LastRequest]
"""By worker and data-parallel rank."""


def worker_gauges(prefix: str, models: Iterable[ServedModel], last_requests: LastRequests) -> Iterator[MetricFamily]:
    """Workers that left get no series and are removed from `last_requests`."""
    models = list(models)
    workers = f"{prefix}_model_workers"
    yield MetricFamily(workers, "Workers that take requests", "gauge", list(_counts(workers, models)))
    blocks, tokens = f"{prefix}_worker_active_decode_blocks", f"{prefix}_worker_active_prefill_tokens"
    # The adapters of a worker are models of their own, with its id.
    active_blocks: Counter[tuple[str, ...]] = Counter()
    waiting_tokens: Counter[tuple[str, ...]] = Counter()
    for model in models:
        for load in model.router.loads():
            worker = tuple(_labels(model.card, *load.worker).values())
            active_blocks[worker] += load.decode_blocks
            waiting_tokens[worker] += load.prefill_tokens
    for name, help, values in (
        (blocks, "KV blocks in use", active_blocks),
        (tokens, "Prompt tokens without a first output", waiting_tokens),
    ):
        samples = [Sample(name, dict(zip(_LABELS, worker, strict=True)), value) for worker, value in values.items()]
        yield MetricFamily(name, help, "gauge", samples)
    cards = {id: model.card for model in models for id in model.router.instances.ids()}
    for gone in [worker for worker in last_requests if worker[0] not in cards]:
        del last_requests[gone]
    for field, help in _LAST.items():
        name = f"{prefix}_worker_last_{field}"
        last = [(_labels(cards[id], id, rank), getattr(last, field)) for (id, rank), last in last_requests.items()]
        yield MetricFamily(name, help, "gauge", [Sample(name, labels, value) for labels, value in last])


def _counts(name: str, models: Iterable[ServedModel]) -> Iterator[Sample]:
    for model in models:
        decode, prefill = WorkerType.Decode.value, WorkerType.Prefill.value
        yield Sample(name, {"model": model.name, "worker_type": decode}, len(model.router.instances.ids()))
        if model.handoffs:
            yield Sample(name, {"model": model.name, "worker_type": prefill}, len(model.handoffs.pool))


def ready_gauge(prefix: str, readiness: dict[str, bool]) -> MetricFamily:
    name = f"{prefix}_model_ready"
    samples = [Sample(name, {"model": model}, int(ready)) for model, ready in readiness.items()]
    return MetricFamily(name, "1 when requests to a registered model are served", "gauge", samples)


def _labels(card: ModelCard, worker_id: int, dp_rank: int | None) -> dict[str, str]:
    return dict(zip(_LABELS, (str(worker_id), str(dp_rank or 0), worker_type(card.worker_type)), strict=True))
