from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dynamo.frontend.measure.tracing import Tracing, tracing_from_env
from dynamo.protocols.engine import EngineOutput
from dynamo.protocols.errors import Disconnected
from dynamo.runtime import Context
from dynamo.runtime.tracing.endpoint_spans import EndpointSpans
from dynamo.runtime.tracing.export import EXPORT_METHOD, SpanSettings
from support.asking import asking
from support.serving import Holding, serving
from support.sinks import Kept
from support.splitting import SplitStack
from support.stack import SOURCE
from support.waiting import PATIENCE, until

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


class Collector:
    """What an OpenTelemetry collector would get."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[Span] = []

    async def traces(self, request: web.Request) -> web.Response:
        self.add(await request.read())
        return web.Response()

    def add(self, request: bytes) -> None:
        sent = ExportTraceServiceRequest.FromString(request)
        self.spans += [span for each in sent.resource_spans for scope in each.scope_spans for span in scope.spans]


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
    span, failed = [each for each in collector.spans if each.name.startswith("POST ")]
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


@pytest.fixture
def grpc_collector() -> Iterator[Collector]:
    """A collector that takes OTLP over gRPC."""
    collector = Collector()

    def export(request: bytes, context: Any) -> bytes:
        collector.add(request)
        return ExportTraceServiceResponse().SerializeToString()

    server = grpc.server(ThreadPoolExecutor(2))
    service, _, method = EXPORT_METHOD[1:].partition("/")
    handlers = {method: grpc.unary_unary_rpc_method_handler(export)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    collector.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield collector
    server.stop(None).wait()


async def test_a_request_that_moves_is_one_tree_of_spans(
    tmp_path: Path, collector: Collector, tracing: Tracing, grpc_collector: Collector
) -> None:
    """The frontend's spans go over HTTP, those of both workers over gRPC."""
    engine, spans = Holding(), SpanSettings(protocol="grpc", endpoint=grpc_collector.url)
    async with (
        asyncio.timeout(PATIENCE),
        serving(tmp_path, engine, workers=2, tracing=tracing, spans=spans, card={"migration_limit": 1}) as stack,
    ):
        asking = asyncio.create_task(stack.chat(headers={"traceparent": TRACEPARENT}))
        first = await engine.requests.get()
        first.sink.tokens([65])
        first.sink.fail(Disconnected("gone"))
        second = await engine.requests.get()
        second.sink.item(EngineOutput(token_ids=[66], finish_reason="eos"))
        second.sink.end()
        assert (await asking).status == 200
    everything = collector.spans + grpc_collector.spans
    assert {span.trace_id.hex() for span in everything} == {TRACE}
    below: dict[str, list[str]] = {}
    names = {span.span_id.hex(): span.name for span in everything} | {PARENT: "client"}
    for span in everything:
        below.setdefault(names[span.parent_span_id.hex()], []).append(span.name)
    root = "POST /v1/chat/completions"
    assert {parent: sorted(children) for parent, children in below.items()} == {
        "client": [root],
        root: sorted(
            ["gate", "preprocess", "route", "prefill", "decode", "migrate: success"] + 2 * ["backend.generate"]
        ),
        "backend.generate": ["decode", "decode", "prefill", "prefill"],
    }
    workers = [span for span in everything if span.name == "backend.generate"]
    assert len({attribute_of(span, "dynamo.worker") for span in workers}) == 2
    assert sorted(attribute_of(span, "error.type") for span in workers) == ["", "Disconnected"]
    assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in everything)


async def test_a_hand_off_is_a_span_of_the_decode_worker_in_the_same_tree() -> None:
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    async with SplitStack(spans=EndpointSpans(provider)) as side:
        await side.mocker("prefill"), await side.mocker("decode")
        await side.ready()
        context, sink = Context(traceparent=TRACEPARENT), Kept()
        delivery = side.delivery(asking([*range(100)], max_tokens=4, ignore_eos=True), context, sink)
        await delivery.start()
        await sink.done
        await delivery.close()
        await until(lambda: sum(span.name.endswith(".generate") for span in kept.get_finished_spans()) == 2)
    spans = kept.get_finished_spans()
    assert {f"{span.context.trace_id:032x}" for span in spans if span.context} == {TRACE}
    roots = {span.context.span_id: span.name for span in spans if span.context and span.name.endswith(".generate")}
    parents = [(span.parent and roots.get(span.parent.span_id), span.name) for span in spans]
    assert sorted(pair for pair in parents if pair[0]) == [
        ("decode.generate", "decode"),
        ("decode.generate", "hand-off"),
        ("decode.generate", "prefill"),
        ("prefill.generate", "hand-off"),
        ("prefill.generate", "prefill"),
    ]


def attribute_of(span: Span, key: str) -> str:
    return next((one.value.string_value for one in span.attributes if one.key == key), "")


def test_spans_are_off_by_default_and_wrong_settings_are_refused() -> None:
    assert tracing_from_env({}) is None
    assert tracing_from_env({"OTEL_EXPORT_ENABLED": "0", "OTEL_EXPORTER_OTLP_PROTOCOL": "carrier pigeon"}) is None
    for wrong, complaint in (
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "must be http/protobuf or grpc"),
        ({"OTEL_TRACES_SAMPLE_RATIO": "2"}, "OTEL_TRACES_SAMPLE_RATIO must be"),
        ({"OTEL_TRACES_SAMPLE_RATIO": "much"}, "OTEL_TRACES_SAMPLE_RATIO must be"),
    ):
        with pytest.raises(ValueError, match=complaint):
            tracing_from_env({"OTEL_EXPORT_ENABLED": "1", **wrong})


def test_nothing_of_opentelemetry_is_imported_when_off() -> None:
    code = "import sys, dynamo.frontend.server; sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(SOURCE)}, check=True)
