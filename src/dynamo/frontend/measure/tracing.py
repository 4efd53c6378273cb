"""OpenTelemetry spans: one for each request that runs a model, with its stages below it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from dynamo.frontend.measure.request_record import RequestRecord, error_type
from dynamo.runtime.tracing.export import close_provider, span_provider, span_settings


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
        if session := record.session:
            span.set_attribute("gen_ai.conversation.id", session.id)
            if session.parent:
                span.set_attribute("dynamo.parent_session", session.parent)
        if prefills := record.prefills:
            span.set_attribute("dynamo.prefill", prefills)
        if record.time_to_first_token is not None:
            span.set_attribute("dynamo.time_to_first_token_seconds", record.time_to_first_token)
        failure = error_type(status, record.error)
        if failure:
            span.set_attribute("error.type", failure)
            if failure not in ("validation", "not_found", "cancelled"):
                span.set_status(self._trace.Status(self._trace.StatusCode.ERROR))
        self._add_stages(record)
        span.end()

    def _add_stages(self, record: RequestRecord) -> None:
        """The stages were measured by the request's record, on a clock of its own."""
        since_epoch = time.time_ns() - int(time.perf_counter() * 1e9)
        parent = self._trace.set_span_in_context(record.span)
        for name, began, ended in _stages(record):
            span = self._tracer.start_span(name, context=parent, start_time=since_epoch + int(began * 1e9))
            span.end(since_epoch + int(ended * 1e9))

    def close(self) -> None:
        close_provider(self._provider)


def _stages(record: RequestRecord) -> Iterator[tuple[str, float, float]]:
    """The name, begin and end of each stage that the request has reached, and of its migrations."""
    times = record.stage_times()
    yield from times
    for delivery in record.deliveries:
        decision = delivery.placement.decision if delivery.placement else None
        if decision and decision.waited and (placed := delivery.history.placed_at):
            yield "queue", placed - decision.waited, placed
        for migration in delivery.history.finished_migrations:
            yield f"migrate: {migration.outcome}", migration.ended_at - migration.seconds, migration.ended_at


def tracing_from_env(environ: Mapping[str, str]) -> Tracing | None:
    """None unless enabled."""
    settings = span_settings(environ)
    return Tracing(span_provider(settings)) if settings else None
