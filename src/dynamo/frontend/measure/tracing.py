"""OpenTelemetry spans, one for each request that runs a model; the library is imported only when enabled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dynamo.frontend.measure.request_record import RequestRecord, error_type
from dynamo.runtime.logging import truthy


class TracingError(Exception):
    """Tracing is enabled but spans cannot be exported; the message names the fix."""


class Tracing:
    """Spans named by the conventions for HTTP servers and generative AI; they are the parents of the workers' spans."""

    def __init__(self, provider: Any) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace = trace
        self._provider = provider
        self._tracer = provider.get_tracer("dynamo.frontend")
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, record: RequestRecord) -> None:
        """Start a span in the client's trace; workers get it as their parent."""
        if record.endpoint is None:
            return
        carrier = {"traceparent": record.traceparent} if record.traceparent else {}
        record.span = self._tracer.start_span(
            f"{record.method} {record.path}",
            context=self._propagator.extract(carrier),
            kind=self._trace.SpanKind.SERVER,
            attributes={
                "http.request.method": record.method,
                "url.path": record.path,
                "dynamo.x_request_id": record.request_id,
            },
        )
        carried: dict[str, str] = {}
        self._propagator.inject(carried, self._trace.set_span_in_context(record.span))
        record.traceparent = carried.get("traceparent", record.traceparent)

    def end(self, record: RequestRecord, status: int) -> None:
        span = record.span
        if span is None:
            return
        span.set_attributes(
            {
                "http.response.status_code": status,
                "gen_ai.request.model": record.model,
                "gen_ai.usage.input_tokens": record.input_tokens,
                "gen_ai.usage.output_tokens": record.output_tokens,
                "dynamo.workers": [f"{worker:x}" for worker in record.workers],
            }
        )
        if record.time_to_first_token is not None:
            span.set_attribute("dynamo.time_to_first_token_seconds", record.time_to_first_token)
        failure = error_type(status, record.error)
        if failure:
            span.set_attribute("error.type", failure)
            if failure not in ("validation", "not_found", "cancelled"):
                span.set_status(self._trace.Status(self._trace.StatusCode.ERROR))
        span.end()

    def close(self) -> None:
        """Export what is buffered."""
        self._provider.shutdown()


def tracing_from_env(environ: Mapping[str, str]) -> Tracing | None:
    """None unless OTEL_EXPORT_ENABLED; the exporter itself reads OTEL_EXPORTER_OTLP_*, as the standard says."""
    if not truthy(environ.get("OTEL_EXPORT_ENABLED")):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
    except ImportError as error:
        raise TracingError(
            "OTEL_EXPORT_ENABLED is set but OpenTelemetry is not installed: pip install 'dynamo-py[otel]'"
        ) from error
    protocol = environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    if protocol not in (None, "", "http/protobuf"):
        raise TracingError(f"OTEL_EXPORTER_OTLP_PROTOCOL must be http/protobuf here, not '{protocol}'")
    provider = TracerProvider(
        resource=Resource.create({"service.name": environ.get("OTEL_SERVICE_NAME") or "dynamo"}),
        sampler=ParentBased(TraceIdRatioBased(_ratio(environ))),
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracing(provider)


def _ratio(environ: Mapping[str, str]) -> float:
    text = environ.get("OTEL_TRACES_SAMPLE_RATIO") or "1"
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio <= 1:
        raise TracingError(f"OTEL_TRACES_SAMPLE_RATIO must be 0..1, not '{text}'")
    return ratio
