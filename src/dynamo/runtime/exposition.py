"""Metrics as the text that Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Metric, generate_latest
from prometheus_client.registry import Collector

from dynamo.runtime.metrics import MetricFamily

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def exposition(snapshots: Iterable[MetricFamily]) -> bytes:
    snapshots = list(snapshots)
    plain = [snapshot for snapshot in snapshots if _is_unsuffixed(snapshot)]
    text = generate_latest(_Fixed(prometheus_metrics(snapshots)))
    for snapshot in plain:
        kind = f"# TYPE {snapshot.name} ".encode()
        text = text.replace(kind + b"gauge\n", kind + b"counter\n", 1)
    return text


def _is_unsuffixed(snapshot: MetricFamily) -> bool:
    """Whether it is a counter whose name does not end in `_total`, as some of ai-dynamo's; the library adds that."""
    return snapshot.kind == "counter" and any(sample.name == snapshot.name for sample in snapshot.samples)


def prometheus_metrics(snapshots: Iterable[MetricFamily]) -> list[Metric]:
    """What a collector of the library yields."""
    return [_metric(snapshot) for snapshot in snapshots]


def _metric(snapshot: MetricFamily) -> Metric:
    metric = Metric(snapshot.name, snapshot.help, "gauge" if _is_unsuffixed(snapshot) else snapshot.kind)
    for sample in snapshot.samples:
        metric.add_sample(sample.name, sample.labels, sample.value)
    return metric


class _Fixed(Collector):
    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics
