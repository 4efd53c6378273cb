"""Gauges per worker: its load, and the latencies of the last request that ended there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from dynamo.protocols.card import ModelCard, WorkerType
from dynamo.runtime.instruments import MetricFamily, Sample
from dynamo.serving.models import ServedModel

LastSeen = dict[tuple[int, int | None], tuple[float, int, float, int]]
"""By worker and rank, of the last request that ended there: seconds to the first token, tokens of the prompt, seconds
between the first and the last token, tokens generated."""
_LAST: tuple[tuple[str, str, Callable[[float, int, float, int], float]], ...] = (
    (
        "worker_last_time_to_first_token_seconds",
        "Time to the first token of the last request that ended there",
        lambda first, prompt, streaming, generated: first,
    ),
    (
        "worker_last_input_sequence_tokens",
        "Prompt tokens of that request",
        lambda first, prompt, streaming, generated: prompt,
    ),
    (
        "worker_last_inter_token_latency_seconds",
        "Time per token after the first of that request",
        lambda first, prompt, streaming, generated: streaming / max(1, generated - 1),
    ),
)


def worker_gauges(prefix: str, models: Iterable[ServedModel], last_seen: LastSeen) -> Iterator[MetricFamily]:
    """Workers that left get no series and are removed from `last_seen`."""
    models = list(models)
    blocks, tokens = f"{prefix}_worker_active_decode_blocks", f"{prefix}_worker_active_prefill_tokens"
    loads = [(_labels(model.card, *load.worker), load) for model in models for load in model.router.loads()]
    yield MetricFamily(
        blocks, "KV blocks in use", "gauge", [Sample(blocks, labels, load.decode_blocks) for labels, load in loads]
    )
    yield MetricFamily(
        tokens,
        "Prompt tokens without a first output",
        "gauge",
        [Sample(tokens, labels, load.prefill_tokens) for labels, load in loads],
    )
    cards = {id: model.card for model in models for id in model.router.instances.ids()}
    for gone in [worker for worker in last_seen if worker[0] not in cards]:
        del last_seen[gone]
    for name, help, read in _LAST:
        full = f"{prefix}_{name}"
        samples = [Sample(full, _labels(cards[id], id, rank), read(*seen)) for (id, rank), seen in last_seen.items()]
        yield MetricFamily(full, help, "gauge", samples)


def ready_gauge(prefix: str, readiness: dict[str, bool]) -> MetricFamily:
    name = f"{prefix}_model_ready"
    samples = [Sample(name, {"model": model}, int(ready)) for model, ready in readiness.items()]
    return MetricFamily(name, "1 when requests to a registered model are served", "gauge", samples)


def _labels(card: ModelCard, worker_id: int, dp_rank: int | None) -> dict[str, str]:
    """A worker that both prefills and decodes is labelled as decoding, as dashboards expect."""
    kind = WorkerType.Decode if card.worker_type is WorkerType.Aggregated else card.worker_type
    return {"worker_id": str(worker_id), "dp_rank": str(dp_rank or 0), "worker_type": kind.value}
