"""Rows about requests that ended."""

from __future__ import annotations

import asyncio
import gzip
import queue
import random
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dynamo.api.openai.trace_payload import PayloadCapture
from dynamo.engines.echo import EchoFull
from dynamo.engines.mocker import MockerArgs, MockerEngine
from dynamo.engines.mocker.tokens import MockVocabulary
from dynamo.frontend.measure.request_trace import PayloadRow, RequestTrace, request_trace_from_env
from dynamo.frontend.measure.trace_sinks import PAYLOAD, RollingFile
from dynamo.simulate import SimulationConfig, read_request_trace, simulate
from support.limits import full_disk, no_more_files
from support.serving import serving


def settings(folder: Path, **more: str) -> dict[str, str]:
    return {"DYN_REQUEST_TRACE": "1", "DYN_REQUEST_TRACE_FILE_PATH": str(folder / "trace.jsonl")} | more


async def mocker(args: MockerArgs) -> MockerEngine:
    engine = MockerEngine(args, vocabulary=MockVocabulary(300, 400))
    await engine.start()
    return engine


def rows(path: Path) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


async def test_each_request_has_a_row_that_names_no_word_of_it(tmp_path: Path) -> None:
    trace = request_trace_from_env(settings(tmp_path))
    async with serving(tmp_path, await mocker(MockerArgs()), request_trace=trace) as stack:
        secret = "pelican " * 40
        messages = [{"role": "user", "content": secret}]
        await stack.chat(messages=messages, max_tokens=5, headers={"x-request-id": "mine"})
        async with await stack.chat(messages=messages, max_tokens=7, stream=True) as answer:
            await answer.read()
        await stack.chat(messages=messages, n=2, max_tokens=3)
        await stack.http.get(f"{stack.url}/v1/models")
    text = (tmp_path / "trace.jsonl").read_text()
    assert "pelican" not in text
    one, other = rows(tmp_path / "trace.jsonl")
    assert (one["schema"], one["event_type"]) == ("dynamo.request.trace.v1", "request_end")
    request = one["request"]
    assert request["x_request_id"] == "mine"
    assert (request["output_tokens"], other["request"]["output_tokens"]) == (5, 7)
    assert request["replay"]["input_length"] == request["input_tokens"] > 200
    assert len(request["replay"]["input_sequence_hashes"]) == request["input_tokens"] // 64
    assert request["replay"]["input_sequence_hashes"] == other["request"]["replay"]["input_sequence_hashes"]
    assert 0 < request["ttft_ms"] <= request["total_time_ms"]
    assert other["request"]["cached_tokens"] > 0
    assert request["worker"]["decode_worker_id"]


async def test_a_recorded_trace_replays_with_the_same_reuse(tmp_path: Path) -> None:
    args = MockerArgs(speedup_ratio=0)
    trace = request_trace_from_env(settings(tmp_path))
    seen = asked = 0
    async with serving(tmp_path, await mocker(args), request_trace=trace, context=8192) as stack:
        for number in range(12):
            words = f"system {number % 3} " * 60 + f"user {number} " * 30
            answer = await stack.chat(messages=[{"role": "user", "content": words}], max_tokens=4)
            usage = (await answer.json())["usage"]
            asked += usage["prompt_tokens"]
            seen += usage["prompt_tokens_details"]["cached_tokens"]
    recorded = tmp_path / "trace.jsonl"
    report = await asyncio.to_thread(simulate, SimulationConfig(engine=args), lambda: read_request_trace(recorded))
    assert report.completed == 12
    assert report.input_tokens == asked
    assert report.cached_tokens == seen > 0


async def test_a_request_that_fails_says_so_in_its_row(tmp_path: Path) -> None:
    trace = request_trace_from_env(settings(tmp_path))
    engine = await mocker(MockerArgs())
    async with serving(tmp_path, engine, request_trace=trace) as stack:
        await engine.close()
        assert (await stack.chat()).status >= 500
    (row,) = rows(tmp_path / "trace.jsonl")
    assert row["request"]["finish_reason_metadata"]["status"] >= 500


def test_a_full_file_is_set_aside(tmp_path: Path) -> None:
    write = RollingFile(tmp_path / "t", 100, compressed=False)
    for letter in b"abc":
        write(bytes([letter]) * 60 + b"\n")
    write.close()
    assert [(tmp_path / name).read_bytes()[:1] for name in ("t.1", "t.2", "t")] == [b"a", b"b", b"c"]


def test_a_compressed_file_is_appended_to(tmp_path: Path) -> None:
    for line in (b"one\n", b"two\n"):
        write = RollingFile(tmp_path / "t.gz", 1 << 20, compressed=True)
        write(line)
        write.close()
    assert gzip.decompress((tmp_path / "t.gz").read_bytes()) == b"one\ntwo\n"


async def test_rows_that_cannot_be_written_in_time_are_dropped_and_requests_go_on(tmp_path: Path) -> None:
    go, written = threading.Event(), queue.Queue[bytes]()

    def slow(line: bytes) -> None:
        go.wait()
        written.put(line)

    trace = RequestTrace([slow], capacity=1)
    async with serving(tmp_path, request_trace=trace) as stack:
        for _ in range(5):
            assert (await stack.chat()).status == 200
        assert trace.dropped >= 3
        go.set()
    assert written.qsize() == 5 - trace.dropped


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"DYN_REQUEST_TRACE_SINKS": "file,s3"}, "DYN_REQUEST_TRACE_SINKS must be file, stderr or otel, not 's3'"),
        ({"DYN_REQUEST_TRACE_FILE_FORMAT": "csv"}, "DYN_REQUEST_TRACE_FILE_FORMAT must be jsonl or jsonl_gz"),
        ({"DYN_REQUEST_TRACE_FILE_PATH": "/no/folder/t"}, "DYN_REQUEST_TRACE_FILE_PATH: cannot write /no/folder/t"),
        ({"DYN_REQUEST_TRACE_CAPACITY": "0"}, "DYN_REQUEST_TRACE_CAPACITY must be at least 1"),
        (
            {"DYN_REQUEST_TRACE_RECORDS": "request_end,payload"},
            "DYN_REQUEST_TRACE_RECORDS must be request_end or request_payload, not 'payload'",
        ),
        (
            {"DYN_REQUEST_TRACE_HTTP_HEADER_CAPTURE_LIST": "x-run"},
            "DYN_REQUEST_TRACE_HTTP_HEADER_CAPTURE_LIST needs request_payload in DYN_REQUEST_TRACE_RECORDS",
        ),
        (
            {"DYN_REQUEST_TRACE_RECORDS": PAYLOAD, "DYN_REQUEST_TRACE_HTTP_HEADER_CAPTURE_LIST": "x-run:1"},
            "DYN_REQUEST_TRACE_HTTP_HEADER_CAPTURE_LIST must be names of HTTP headers, not 'x-run:1'",
        ),
        (
            {"DYN_REQUEST_TRACE_OTEL_MAX_PAYLOAD_BYTES": "0"},
            "DYN_REQUEST_TRACE_OTEL_MAX_PAYLOAD_BYTES must be at least 1",
        ),
    ],
)
def test_a_wrong_variable_is_named(tmp_path: Path, variables: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        request_trace_from_env(settings(tmp_path, **variables))


def payloads(folder: Path, **more: str) -> RequestTrace:
    trace = request_trace_from_env(settings(folder, DYN_REQUEST_TRACE_RECORDS=PAYLOAD, **more))
    assert trace
    return trace


async def test_a_payload_row_has_the_request_and_the_answer_whole_or_streamed(tmp_path: Path) -> None:
    names = "X-Run-Id, traceparent"
    trace = payloads(tmp_path, DYN_REQUEST_TRACE_HTTP_HEADER_CAPTURE_LIST=names)
    messages = [{"role": "user", "content": "pelican\nwith a line break"}]
    fields: dict[str, Any] = {"messages": messages, "max_tokens": 6, "seed": 5, "n": 2}
    async with serving(tmp_path, await mocker(MockerArgs()), request_trace=trace) as stack:
        headers = {"x-request-id": "mine", "x-run-id": "42", "authorization": "Bearer secret"}
        whole = await (await stack.chat(headers=headers, **fields)).json()
        async with await stack.chat(stream=True, stream_options={"include_usage": True}, **fields) as answer:
            streamed = (await answer.read()).decode()
        await stack.http.post(f"{stack.url}/v1/completions", json={"model": "tiny", "prompt": "x", "max_tokens": 1})
    text = (tmp_path / "trace.jsonl").read_text()
    assert "secret" not in text
    one, other = rows(tmp_path / "trace.jsonl")
    assert (one["schema"], one["event_type"], one["event_source"]) == (
        "dynamo.request.trace.v1", "request_payload", "dynamo"
    )  # fmt: skip
    assert one["payload"] == {
        "request_id": "mine",
        "endpoint": "openai.chat_completion",
        "model": "tiny",
        "request": {"model": "tiny", **fields},
        "response": whole,
        "http_request_headers": {"x-run-id": "42"},
        "payload_complete": True,
    }
    said = [choice["message"]["content"] for choice in other["payload"]["response"]["choices"]]
    assert said == [choice["message"]["content"] for choice in whole["choices"]]
    assert other["payload"]["response"]["object"] == "chat.completion"
    assert other["payload"]["response"]["usage"]["completion_tokens"] == 12
    assert other["payload"]["response"]["id"] in streamed
    assert "http_request_headers" not in other["payload"]


async def test_a_request_that_failed_or_whose_client_left_keeps_what_was_asked(tmp_path: Path) -> None:
    engine = await mocker(MockerArgs(speedup_ratio=0.01))
    async with serving(tmp_path, engine, request_trace=payloads(tmp_path)) as stack:
        assert (await stack.chat(model="other")).status == 404
        async with await stack.chat(stream=True, max_tokens=500) as answer:
            await answer.content.readany()
            answer.close()
    refused, left = (row["payload"] for row in rows(tmp_path / "trace.jsonl"))
    assert refused["model"] == refused["request"]["model"] == "other"
    assert left["request"]["max_tokens"] == 500
    assert "response" not in refused
    assert "response" not in left
    assert refused["payload_complete"]


async def test_a_worker_that_streams_its_own_chunks_leaves_an_incomplete_payload(tmp_path: Path) -> None:
    async with serving(tmp_path, EchoFull(0.0), request_trace=payloads(tmp_path)) as stack:
        whole = await (await stack.chat()).json()
        async with await stack.chat(stream=True) as answer:
            await answer.read()
    one, other = (row["payload"] for row in rows(tmp_path / "trace.jsonl"))
    assert one["response"]["choices"] == whole["choices"]
    assert "response" not in other
    assert not other["payload_complete"]
    assert "the worker's own chunks" in other["payload_drop_reason"]


async def test_what_was_said_may_wait_only_up_to_a_number_of_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dynamo.frontend.measure.request_trace._WAITING_BYTES", 600)
    go, written = threading.Event(), queue.Queue[bytes]()

    def slow(line: bytes) -> None:
        go.wait()
        written.put(line)

    trace = RequestTrace([slow], capacity=100, ends=False, payloads=PayloadCapture())
    async with serving(tmp_path, request_trace=trace) as stack:
        for _ in range(6):
            assert (await stack.chat()).status == 200
        assert trace.dropped > 0
        go.set()
    assert written.qsize() == 6 - trace.dropped > 0


def test_a_marker_stands_for_a_row_that_is_too_large() -> None:
    captured = PayloadCapture(["X-Run"]).begin("m", b'{ "model": "m",\n"x": "\xff" }', {"x-run": "7"})
    row = PayloadRow("id", 1.5, captured)
    encoder = msgspec.json.Encoder()
    assert row.line(encoder).count(b"\n") == 1
    assert msgspec.json.decode(row.line(encoder))["payload"]["request"] == {"model": "m", "x": "�"}
    marker = msgspec.json.decode(row.line(encoder, 4))["payload"]
    assert marker == {
        "request_id": "id",
        "endpoint": "openai.chat_completion",
        "model": "m",
        "http_request_headers": {"x-run": "7"},
        "payload_complete": False,
        "payload_drop_reason": "the row is larger than 4 bytes",
    }


async def test_replay_reads_a_trace_with_both_kinds_of_rows(tmp_path: Path) -> None:
    trace = request_trace_from_env(settings(tmp_path, DYN_REQUEST_TRACE_RECORDS="request_end,request_payload,tool"))
    async with serving(tmp_path, await mocker(MockerArgs()), request_trace=trace) as stack:
        for _ in range(3):
            await stack.chat(max_tokens=4)
    kinds = [row["event_type"] for row in rows(tmp_path / "trace.jsonl")]
    assert kinds == ["request_end", "request_payload"] * 3
    assert [request.output_tokens for request in read_request_trace(tmp_path / "trace.jsonl")] == [4, 4, 4]


def test_nothing_is_written_unless_asked_for() -> None:
    assert request_trace_from_env({}) is None


@pytest.mark.parametrize("compressed", [False, True])
def test_a_full_disk_loses_rows_and_cuts_none(tmp_path: Path, compressed: bool) -> None:
    write = RollingFile(tmp_path / "t", 20_000, compressed=compressed)
    made = [random.Random(number).randbytes(1000).hex().encode() + b"\n" for number in range(60)]
    for row in made[:5]:
        write(row)
    with full_disk():
        for row in made[5:40]:
            with pytest.raises(OSError, match="File too large"):
                write(row)
    for row in made[40:]:
        write(row)
    write.close()
    files = sorted(tmp_path.iterdir(), key=lambda path: (path.name == "t", len(path.name), path.name))
    assert len(files) > 1
    content = b"".join(gzip.decompress(file.read_bytes()) if compressed else file.read_bytes() for file in files)
    # The first row that could not be written was kept.
    assert content.splitlines(keepends=True) == [*made[:6], *made[40:]]


def test_rows_are_written_again_after_a_file_could_not_be_opened(tmp_path: Path) -> None:
    write = RollingFile(tmp_path / "t", 100, compressed=False)
    write(b"a" * 90 + b"\n")
    with no_more_files(), pytest.raises(OSError, match="Too many open files"):
        write(b"b" * 90 + b"\n")
    write(b"c" * 90 + b"\n")
    write.close()
    assert [(tmp_path / name).read_bytes()[:1] for name in ("t.1", "t")] == [b"a", b"c"]
