"""Metrics as the text that Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Metric, generate_latest

from dynamo.runtime.instruments import MetricFamily

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def exposition(snapshots: Iterable[MetricFamily]) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Fixed([_metric(snapshot) for snapshot in snapshots]))
    return generate_latest(registry)


def _metric(snapshot: MetricFamily) -> Metric:
    metric = Metric(snapshot.name, snapshot.help, snapshot.kind)
    for sample in snapshot.samples:
        metric.add_sample(sample.name, sample.labels, sample.value)
    return metric


class _Fixed:
    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics
