from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from dynamo.frontend.measure.tracing import Tracing, tracing_from_env
from support.serving import serving
from support.stack import SOURCE

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


class Collector:
    """What an OpenTelemetry collector would get."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[Span] = []

    async def traces(self, request: web.Request) -> web.Response:
        told = ExportTraceServiceRequest.FromString(await request.read())
        self.spans += [span for each in told.resource_spans for scope in each.scope_spans for span in scope.spans]
        return web.Response()


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    collector = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", collector.traces)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    collector.url = "http://{}:{}".format(*runner.addresses[0])
    yield collector
    await runner.cleanup()


@pytest.fixture
async def tracing(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> Tracing:
    # The exporter reads its part of the environment itself.
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    made = await asyncio.to_thread(tracing_from_env, {"OTEL_EXPORT_ENABLED": "1"})
    assert made
    return made


async def test_without_spans_the_clients_trace_goes_to_the_worker(tmp_path: Path) -> None:
    async with serving(tmp_path) as stack:
        await stack.chat(headers={"traceparent": TRACEPARENT, "x-dynamo-meta-team": "blue"})
        await stack.chat(headers={"traceparent": "nonsense"})
    assert [context.traceparent for context in stack.contexts] == [TRACEPARENT, None]
    assert stack.contexts[0].metadata == {"team": "blue"}


async def test_a_span_stands_between_the_client_and_the_worker(
    tmp_path: Path, collector: Collector, tracing: Tracing
) -> None:
    async with serving(tmp_path, tracing=tracing) as stack:
        await stack.chat(headers={"traceparent": TRACEPARENT, "x-request-id": "mine"})
        await stack.http.get(f"{stack.url}/health")
        await stack.chat(model="nope")
    (context,) = stack.contexts
    span, failed = collector.spans
    assert span.trace_id.hex() == context.trace_id == TRACE
    assert span.parent_span_id.hex() == PARENT
    assert span.span_id.hex() == context.parent_span_id
    told = {attribute.key: attribute.value for attribute in span.attributes}
    assert told["http.response.status_code"].int_value == 200
    assert told["gen_ai.request.model"].string_value == "tiny"
    assert told["gen_ai.usage.input_tokens"].int_value == 13
    assert told["gen_ai.usage.output_tokens"].int_value == 7
    assert told["dynamo.x_request_id"].string_value == "mine"
    assert told["dynamo.time_to_first_token_seconds"].double_value > 0
    errors = {attribute.key: attribute.value.string_value for attribute in failed.attributes}
    assert errors["error.type"] == "not_found"


def test_spans_are_off_by_default_and_wrong_settings_are_refused() -> None:
    assert tracing_from_env({}) is None
    assert tracing_from_env({"OTEL_EXPORT_ENABLED": "0", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}) is None
    for wrong, complaint in (
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "must be http/protobuf"),
        ({"OTEL_TRACES_SAMPLE_RATIO": "2"}, "OTEL_TRACES_SAMPLE_RATIO must be"),
        ({"OTEL_TRACES_SAMPLE_RATIO": "much"}, "OTEL_TRACES_SAMPLE_RATIO must be"),
    ):
        with pytest.raises(ValueError, match=complaint):
            tracing_from_env({"OTEL_EXPORT_ENABLED": "1", **wrong})


def test_nothing_of_opentelemetry_is_imported_when_off() -> None:
    code = "import sys, dynamo.frontend.server; sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(SOURCE)}, check=True)
