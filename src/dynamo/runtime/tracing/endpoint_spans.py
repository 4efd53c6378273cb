"""A span for each request to an endpoint that this process serves, joined to the caller's trace."""

from __future__ import annotations

import time
from typing import Any

from dynamo.protocols.errors import Cancelled, DynamoException
from dynamo.runtime.context import Context
from dynamo.runtime.names import EndpointId
from dynamo.runtime.stream import Handler, Outlet


class EndpointSpans:
    """Wraps the handlers of endpoints; a process that sends no spans has none of these."""

    def __init__(self, provider: Any) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace = trace
        self._tracer = provider.get_tracer("dynamo.worker")
        self._propagator = TraceContextTextMapPropagator()

    def traced(self, handler: Handler, endpoint: EndpointId, instance_id: int) -> Handler:
        name = f"{endpoint.component}.{endpoint.name}"
        attributes = {"dynamo.endpoint": str(endpoint), "dynamo.worker": f"{instance_id:x}"}

        def handle(request: Any, context: Context, outlet: Outlet) -> None:
            if context.traceparent is None:  # a health check, or a caller that is not traced
                handler(request, context, outlet)
                return
            parent = self._propagator.extract({"traceparent": context.traceparent})
            span = self._tracer.start_span(
                name,
                context=parent,
                kind=self._trace.SpanKind.SERVER,
                attributes=attributes | {"dynamo.request_id": context.id()},
            )
            traced = SpannedOutlet(outlet, span, self)
            try:
                handler(request, context, traced)
            except BaseException as error:
                traced.close(error)
                raise

        return handle

    def child(self, parent: Any, name: str, start: int, end: int) -> None:
        """A span with these times, in nanoseconds since 1970."""
        span = self._tracer.start_span(name, context=self._trace.set_span_in_context(parent), start_time=start)
        span.end(end)

    def mark_failed(self, span: Any, error: BaseException) -> None:
        span.set_attribute("error.type", type(error).__name__)
        if not isinstance(error, Cancelled):
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, str(error)[:200]))


class SpannedOutlet:
    """Passes everything on, and ends the span with the stream: until the first token it is prefill, then decode.

    A handler that does something else before calls `next_stage`.
    """

    __slots__ = ("_began", "_first", "_outlet", "_span", "_spans", "columnar", "last_stage")

    def __init__(self, outlet: Outlet, span: Any, spans: EndpointSpans) -> None:
        self._outlet = outlet
        self._span = span
        self._spans = spans
        self._began = time.time_ns()
        self._first = 0
        self.last_stage = "decode"
        """What follows the first token; at a prefill worker, its offer to a decode worker."""
        self.columnar = outlet.columnar

    def tokens(self, ids: list[int]) -> None:
        self._first = self._first or time.time_ns()
        self._outlet.tokens(ids)

    def item(self, value: Any) -> None:
        self._first = self._first or time.time_ns()
        self._outlet.item(value)

    def next_stage(self, name: str) -> None:
        """What was done so far is a stage of this name; the next one begins now."""
        now = time.time_ns()
        self._spans.child(self._span, name, self._began, now)
        self._began = now

    def end(self) -> None:
        self.close(None)
        self._outlet.end()

    def fail(self, error: DynamoException) -> None:
        self.close(error)
        self._outlet.fail(error)

    async def writable(self) -> None:
        await self._outlet.writable()

    def close(self, error: BaseException | None) -> None:
        if not self._span.is_recording():
            return
        end = time.time_ns()
        self._spans.child(self._span, "prefill", self._began, self._first or end)
        if self._first:
            self._spans.child(self._span, self.last_stage, self._first, end)
        if error is not None:
            self._spans.mark_failed(self._span, error)
        self._span.end(end)
