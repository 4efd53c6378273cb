"""OpenTelemetry spans, one for each request that runs a model; the library is imported only when enabled."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from dynamo.frontend.measure.request_record import RequestRecord, error_type
from dynamo.settings import Setting, Settings
from dynamo.settings.setting import truthy

log = logging.getLogger(__name__)

LAST_EXPORT_SECONDS = 3.0
"""At exit. An unreachable collector would otherwise delay it by half a minute."""


class ExportSettings(Settings, frozen=True, kw_only=True):
    enabled: Annotated[
        bool, Setting(variables="OTEL_EXPORT_ENABLED", help="send spans to a collector", parse=truthy)
    ] = False


class SpanSettings(Settings, frozen=True, kw_only=True):
    """Read only when spans are exported: a host may set these for other programs."""

    # fmt: off
    protocol: Annotated[Literal["http/protobuf"], Setting(
        variables=("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"),
        help="how spans are sent")] = "http/protobuf"
    service_name: Annotated[str, Setting(variables="OTEL_SERVICE_NAME", help="`service.name` of the spans")] = "dynamo"
    ratio: Annotated[float, Meta(ge=0, le=1), Setting(
        variables="OTEL_TRACES_SAMPLE_RATIO", help="share of the traces begun here that are sent, 0..1")] = 1.0
    # fmt: on


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
        if prefills := record.prefills:
            span.set_attribute("dynamo.prefill", prefills)
        if record.time_to_first_token is not None:
            span.set_attribute("dynamo.time_to_first_token_seconds", record.time_to_first_token)
        failure = error_type(status, record.error)
        if failure:
            span.set_attribute("error.type", failure)
            if failure not in ("validation", "not_found", "cancelled"):
                span.set_status(self._trace.Status(self._trace.StatusCode.ERROR))
        span.end()

    def close(self) -> None:
        """Export what is buffered, but do not wait long for a collector that cannot be reached."""
        export = threading.Thread(target=self._provider.shutdown, name="dynamo-last-spans", daemon=True)
        export.start()
        export.join(LAST_EXPORT_SECONDS)
        if export.is_alive():
            log.warning("the last spans were not exported within %g s and are lost", LAST_EXPORT_SECONDS)


def tracing_from_env(environ: Mapping[str, str]) -> Tracing | None:
    """None unless enabled; the exporter itself reads OTEL_EXPORTER_OTLP_*, as the standard says."""
    if not ExportSettings.from_env(environ).enabled:
        return None
    settings = SpanSettings.from_env(environ)
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
    except ImportError as error:
        raise ValueError(
            "OTEL_EXPORT_ENABLED is set but OpenTelemetry is not installed: pip install 'dynamo-py[otel]'"
        ) from error
    provider = TracerProvider(
        resource=Resource.create({"service.name": settings.service_name}),
        sampler=ParentBased(TraceIdRatioBased(settings.ratio)),
        shutdown_on_exit=False,  # `Tracing.close` does it, within a limit
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracing(provider)
