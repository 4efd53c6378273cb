"""The metrics of a picker: its choices, its endpoints, and those of its routers."""

from __future__ import annotations

from msgspec import Struct

from dynamo.api.epp.endpoints import Endpoints
from dynamo.api.epp.picker import PickCounts
from dynamo.protocols.card import WorkerType
from dynamo.router.families import LabelledRouter, router_families
from dynamo.runtime.metrics import Metric, MetricFamily, families
from dynamo.serving.models import Models

PREFIX = "dynamo_epp_"


class PickerNumbers(Struct, frozen=True):
    counts: PickCounts
    endpoints: Endpoints


_TABLE: tuple[Metric[PickerNumbers], ...] = (
    Metric("counter", "picks_total", "Servers chosen, by the prompt's tokens or by load alone",
        lambda one: {("tokens",): one.counts.by_tokens, ("load",): one.counts.by_load}, ("by",)),
    Metric("counter", "refused_total", "Requests for which there was no server", lambda one: one.counts.refused),
    Metric("gauge", "endpoints", "Servers that may be chosen", lambda one: len(one.endpoints)),
    Metric("gauge", "requests_in_flight", "Requests that a server was chosen for and that have not ended",
        lambda one: one.endpoints.in_flight.total()),
    Metric("histogram", "pick_seconds", "From the whole request to the choice", lambda one: one.counts.seconds),
)  # fmt: skip


def picker_families(counts: PickCounts, endpoints: Endpoints, models: Models) -> list[MetricFamily]:
    routers = [
        LabelledRouter(
            each.router,
            each.name,
            models.router_id,
            WorkerType.Decode if each.card.worker_type is WorkerType.Decode else WorkerType.Aggregated,
            each.card.kv_cache_block_size,
        )
        for each in models.served()
    ]
    return [*families(_TABLE, [({}, PickerNumbers(counts, endpoints))], PREFIX), *router_families(routers)]
