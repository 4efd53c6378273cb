"""Counts of served endpoints, under the metric names that dashboards already use. Nothing here runs per token."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from dynamo.protocols.errors import InvalidArgument
from dynamo.runtime.metrics.instruments import Histogram, MetricFamily, Number, Sample
from dynamo.runtime.names import EndpointId

PREFIX = "dynamo_component"
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
OWN_LABELS = ("dynamo_namespace", "dynamo_component", "dynamo_endpoint", "worker_id", "error_type", "le")


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
        **dict(more),
    }


def component_metrics(endpoints: Iterable[EndpointCounts], uptime: float) -> Iterator[MetricFamily]:
    endpoints = list(endpoints)
    for name, kind, help, read in _FAMILIES:
        full = f"{PREFIX}_{name}"
        samples = [sample for one in endpoints for sample in read(one).samples(full, one.labels)]
        yield MetricFamily(full.removesuffix("_total"), help, kind, samples)
    name = f"{PREFIX}_errors"
    errors = [
        Sample(f"{name}_total", {**one.labels, "error_type": kind}, count.value)
        for one in endpoints
        for kind, count in one.errors.items()
    ]
    yield MetricFamily(name, "Requests that failed, by what failed", "counter", errors)
    for name, kind, help, count in _ADMISSION:
        limited = [Sample(name, one.labels, count(one.admission)) for one in endpoints if one.admission]
        yield MetricFamily(name.removesuffix("_total"), help, kind, limited)
    name = f"{PREFIX}_uptime_seconds"
    yield MetricFamily(name, "Seconds since the start", "gauge", [Sample(name, {}, uptime)])


_FAMILIES: tuple[tuple[str, str, str, Callable[[EndpointCounts], Number | Histogram]], ...] = (
    ("requests_total", "counter", "Requests that came", lambda one: one.requests),
    ("inflight_requests", "gauge", "Requests being answered", lambda one: one.running),
    ("request_duration_seconds", "histogram", "From a request to its answer's end", lambda one: one.duration),
    ("request_bytes_total", "counter", "Bytes of requests", lambda one: one.request_bytes),
    ("response_bytes_total", "counter", "Bytes of answers", lambda one: one.response_bytes),
    ("cancellation_total", "counter", "Requests that were stopped or left by their caller", lambda one: one.cancelled),
)

_ADMISSION: tuple[tuple[str, str, str, Callable[[AdmissionState], int]], ...] = (
    ("dynamo_engine_request", "gauge", "Requests in the engine", lambda admission: admission.running),
    ("dynamo_request_queue", "gauge", "Requests that wait for the engine", lambda admission: admission.waiting),
    ("dynamo_rejection_request_total", "counter", "Requests refused as busy", lambda admission: admission.refused),
)
"""Under ai-dynamo's names, which have no prefix; only of endpoints with a limit."""
