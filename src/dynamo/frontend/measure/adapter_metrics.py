"""Gauges of LoRA adapters, which are served as models of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dynamo.frontend.measure.metrics import FrontendMetrics
from dynamo.runtime.metrics.instruments import MetricFamily, Sample
from dynamo.serving.served_model import ServedModel


def adapter_gauges(metrics: FrontendMetrics, models: Iterable[ServedModel]) -> Iterator[MetricFamily]:
    running: dict[str, float] = {}
    workers: dict[str, float] = {}
    for model in models:
        if model.card.lora:
            asked = metrics.asked(model.name)
            running[model.name] = asked.inflight.value if asked else 0
            workers[model.name] = len(model.router.instances.ids())
    gauges = (
        ("lora_active_requests", "Running requests with an adapter", running),
        ("lora_is_active", "1 while a request with the adapter runs", {name: running[name] > 0 for name in running}),
        ("lora_replica_factor", "Workers that have loaded an adapter", workers),
    )
    for suffix, help, values in gauges:
        name = f"{metrics.prefix}_{suffix}"
        yield MetricFamily(name, help, "gauge", [Sample(name, {"lora": lora}, value) for lora, value in values.items()])
