"""OpenTelemetry: how spans leave this process. The library is imported only when they do."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta

from dynamo.settings import Setting, Settings
from dynamo.settings.setting import truthy

log = logging.getLogger(__name__)

LAST_EXPORT_SECONDS = 3.0
"""The time for the export at exit, which an unreachable collector would otherwise delay by half a minute."""
EXPORT_METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
EXPORT_SECONDS = 10.0


class ExportSettings(Settings, frozen=True, kw_only=True):
    enabled: Annotated[
        bool, Setting(variables="OTEL_EXPORT_ENABLED", help="send spans to a collector", parse=truthy)
    ] = False


class SpanSettings(Settings, frozen=True, kw_only=True):
    """Read only when spans are exported: a host may set these for other programs."""

    # fmt: off
    protocol: Annotated[Literal["http/protobuf", "grpc"], Setting(
        variables=("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"),
        help="how spans are sent")] = "http/protobuf"
    endpoint: Annotated[str | None, Setting(
        variables=("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"),
        help="the collector; `https://` is encrypted",
        default="http://localhost:4318, with gRPC http://localhost:4317")] = None
    service_name: Annotated[str, Setting(variables="OTEL_SERVICE_NAME", help="`service.name` of the spans")] = "dynamo"
    ratio: Annotated[float, Meta(ge=0, le=1), Setting(
        variables="OTEL_TRACES_SAMPLE_RATIO", help="share of the traces begun here that are sent, 0..1")] = 1.0
    # fmt: on


def span_settings(environ: Mapping[str, str]) -> SpanSettings | None:
    """None unless spans are exported."""
    return SpanSettings.from_env(environ) if ExportSettings.from_env(environ).enabled else None


def span_provider(settings: SpanSettings) -> Any:
    """Where spans are made. The exporter over HTTP reads OTEL_EXPORTER_OTLP_* itself, as the standard says."""
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

        exporter = _exporter(settings)
    except ImportError as error:
        raise ValueError(
            "OTEL_EXPORT_ENABLED is set but OpenTelemetry is not installed: pip install 'dynamo-serving[otel]'"
        ) from error
    provider = TracerProvider(
        resource=Resource.create({"service.name": settings.service_name}),
        sampler=ParentBased(TraceIdRatioBased(settings.ratio)),
        shutdown_on_exit=False,  # `close_provider` does it, within a limit
    )
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def close_provider(provider: Any) -> None:
    """Export what is buffered, but do not wait long for a collector that cannot be reached."""
    export = threading.Thread(target=provider.shutdown, name="dynamo-last-spans", daemon=True)
    export.start()
    export.join(LAST_EXPORT_SECONDS)
    if export.is_alive():
        log.warning("the last spans were not exported within %g s and are lost", LAST_EXPORT_SECONDS)


def _exporter(settings: SpanSettings) -> Any:
    if settings.protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        return OTLPSpanExporter()
    import grpc

    scheme, _, address = (settings.endpoint or "http://localhost:4317").rpartition("://")
    if scheme == "https":
        channel = grpc.secure_channel(address.rstrip("/"), grpc.ssl_channel_credentials())
    else:
        channel = grpc.insecure_channel(address.rstrip("/"))
    return GrpcSpanExporter(channel)


class GrpcSpanExporter:
    """Sends spans over gRPC. OpenTelemetry's own exporter would be one more package for this one call."""

    def __init__(self, channel: Any) -> None:
        from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
        from opentelemetry.sdk.trace.export import SpanExportResult

        self._results = SpanExportResult
        self._channel = channel
        self._send = channel.unary_unary(
            EXPORT_METHOD, request_serializer=lambda spans: encode_spans(spans).SerializeToString()
        )

    def export(self, spans: Sequence[Any]) -> Any:
        """Called by a thread of OpenTelemetry's own."""
        import grpc

        try:
            self._send(spans, timeout=EXPORT_SECONDS, wait_for_ready=True)
        except grpc.RpcError as error:
            log.warning("%d spans could not be sent: %s", len(spans), error.details() or error.code())
            return self._results.FAILURE
        return self._results.SUCCESS

    def shutdown(self) -> None:
        self._channel.close()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True
