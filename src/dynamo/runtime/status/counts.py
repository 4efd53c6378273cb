"""Counts of served endpoints, under the metric names that dashboards already use. Nothing here runs per token."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Protocol

from dynamo.protocols.errors import InvalidArgument
from dynamo.protocols.worker_name import worker_name
from dynamo.runtime.metrics import Histogram, Metric, MetricFamily, Number, families
from dynamo.runtime.names import EndpointId

PREFIX = "dynamo_component_"
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
OWN_LABELS = ("dynamo_namespace", "dynamo_component", "dynamo_endpoint", "worker_id", "worker_name", "error_type", "le")


class AdmissionState(Protocol):
    """How many requests a worker takes at a time, where that is limited."""

    refused: int

    @property
    def running(self) -> int: ...

    @property
    def waiting(self) -> int: ...


class EndpointCounts:
    """The counts of one endpoint of one instance; `labels` are on each of its series."""

    def __init__(self, labels: dict[str, str]) -> None:
        self.labels = labels
        self.good = 0
        """Requests answered without an error."""
        self.requests = Number()
        self.running = Number()
        self.request_bytes = Number()
        self.response_bytes = Number()
        """Bytes of encoded responses; counted where they are encoded."""
        self.cancelled = Number()
        self.duration = Histogram(BOUNDS)
        self.errors: dict[str, Number] = {}
        self.admission: AdmissionState | None = None

    def arrived(self, size: int) -> None:
        """Count a request of `size` bytes, whatever becomes of it."""
        self.requests.value += 1
        self.request_bytes.value += size

    def begun(self) -> None:
        self.running.value += 1

    def ended(self, seconds: float, *, failed: bool, cancelled: bool) -> None:
        """Count the end of a request that was begun."""
        self.running.value -= 1
        self.duration.observe(seconds)
        self.cancelled.value += cancelled
        if failed:
            self.error("generate")
        else:
            self.good += 1

    def error(self, kind: str) -> None:
        self.errors.setdefault(kind, Number()).value += 1


def endpoint_labels(endpoint: EndpointId, instance_id: int, more: Sequence[tuple[str, str]]) -> dict[str, str]:
    """The labels every endpoint has and those its author gave it; raises InvalidArgument for an invalid one."""
    for name, value in more:
        if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name) or name.startswith("__") or not isinstance(value, str):
            raise InvalidArgument(f"metrics_labels: {name!r} = {value!r} is not a valid Prometheus label")
        if name in OWN_LABELS:
            raise InvalidArgument(f"metrics_labels: {name!r} is set by the runtime")
    return {
        "dynamo_namespace": endpoint.namespace,
        "dynamo_component": endpoint.component,
        "dynamo_endpoint": endpoint.name,
        "worker_id": f"{instance_id:x}",
        "worker_name": worker_name(instance_id),
        **dict(more),
    }


def component_metrics(endpoints: Iterable[EndpointCounts], uptime: float) -> list[MetricFamily]:
    endpoints = list(endpoints)
    return [
        *families(_METRICS, [(one.labels, one) for one in endpoints], PREFIX),
        *families(_LIMITED, [(one.labels, one.admission) for one in endpoints if one.admission]),
        _UPTIME.family([({}, uptime)], PREFIX),
    ]


_METRICS: tuple[Metric[EndpointCounts], ...] = (
    Metric("counter", "requests_total", "Requests that came", lambda one: one.requests),
    Metric("gauge", "inflight_requests", "Requests being answered", lambda one: one.running),
    Metric("histogram", "request_duration_seconds", "From a request to its answer's end", lambda one: one.duration),
    Metric("counter", "request_bytes_total", "Bytes of requests", lambda one: one.request_bytes),
    Metric("counter", "response_bytes_total", "Bytes of answers", lambda one: one.response_bytes),
    Metric("counter", "cancellation_total", "Requests that were stopped or left by their caller",
        lambda one: one.cancelled),
    Metric("counter", "errors_total", "Requests that failed, by what failed",
        lambda one: {(kind,): count for kind, count in one.errors.items()}, ("error_type",)),
)  # fmt: skip
_LIMITED: tuple[Metric[AdmissionState], ...] = (
    Metric("gauge", "dynamo_engine_request", "Requests in the engine", lambda limit: limit.running),
    Metric("gauge", "dynamo_request_queue", "Requests that wait for the engine", lambda limit: limit.waiting),
    Metric("counter", "dynamo_rejection_request_total", "Requests refused as busy", lambda limit: limit.refused),
)
"""Under ai-dynamo's names, which have no prefix; only of endpoints with a limit."""
_UPTIME: Metric[float] = Metric("gauge", "uptime_seconds", "Seconds since the start",
    lambda seconds: seconds)  # fmt: skip
