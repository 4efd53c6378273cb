from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.limits import few_files
from support.serving import CHAT, Holding, Served, serving
from support.waiting import PATIENCE, until

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


async def closed(reader: asyncio.StreamReader) -> bytes:
    """Everything until the server hangs up."""
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


async def still_serves(stack: Served) -> None:
    """Ask until there is an answer: on a loaded machine the short limits of these tests can hit any request."""

    async def answers() -> bool:
        try:
            async with stack.http.get(f"{stack.url}/live") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False

    await until(answers)


@pytest.mark.parametrize("sent", [b"G", HEAD, b"\r\n"])
async def test_half_a_header_is_not_waited_for(tmp_path: Path, sent: bytes) -> None:
    async with serving(tmp_path, header_timeout=0.1) as stack:
        async with stack.raw() as (reader, writer):
            writer.write(sent)
            assert await closed(reader) == b""
        await still_serves(stack)


async def test_a_header_that_drips_does_not_win_time(tmp_path: Path) -> None:
    async with serving(tmp_path, header_timeout=0.2) as stack, stack.raw() as (reader, writer):
        writer.write(HEAD)
        ended = asyncio.create_task(closed(reader))
        while not ended.done():
            writer.write(b"x")
            await asyncio.wait({ended}, timeout=0.02)
        assert await ended == b""


async def test_half_a_body_is_answered_408_and_closed(tmp_path: Path) -> None:
    async with serving(tmp_path, body_timeout=0.1) as stack, stack.raw() as (reader, writer):
        writer.write(HEAD + b'Content-Length: 100\r\n\r\n{"model"')
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 ")
        assert b"x-request-id" in head.lower()
        assert b"connection: close" in head.lower()
        assert b"request_timeout_error" in await closed(reader)


async def test_a_connection_without_requests_is_closed(tmp_path: Path) -> None:
    async with serving(tmp_path, idle_timeout=0.2) as stack, stack.raw() as (reader, _):
        assert await closed(reader) == b""


async def test_zero_means_no_limit(tmp_path: Path) -> None:
    none: Any = {"header_timeout": 0.0, "body_timeout": 0.0, "idle_timeout": 0.0, "stall_timeout": 0.0}
    async with serving(tmp_path, **none) as stack, stack.raw() as (reader, writer):
        for _ in range(2):
            writer.write(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"200" in await reader.readuntil(b"\r\n\r\n")
            await reader.readuntil(b"}")
        assert (await stack.chat()).status == 200


async def test_a_request_that_takes_long_is_not_mistaken_for_a_slow_client(tmp_path: Path) -> None:
    engine = Holding()
    async with serving(tmp_path, engine, header_timeout=1.0, idle_timeout=1.0, body_timeout=1.0) as stack:
        asking = asyncio.create_task(stack.chat())
        held = await engine.requests.get()
        done, _ = await asyncio.wait({asking}, timeout=1.5)
        assert not done
        held.sink.tokens([100])
        held.sink.end()
        assert (await asking).status == 200


async def test_a_malformed_chunk_behind_the_header_is_refused_at_once(tmp_path: Path) -> None:
    """It came in a packet of its own, and the body was waited for until its time was over."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    async with serving(tmp_path) as stack, stack.raw() as (reader, writer):
        writer.write(head + b"Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n")
        assert b" 100 " in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"1\r\n{\r\nzz\r\n")
        answer = await closed(reader)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"the request's body is not valid HTTP" in answer


@pytest.mark.parametrize(("size", "refused"), [(1, True), (64, False)])
async def test_a_large_body_in_tiny_chunks_is_refused(tmp_path: Path, size: int, refused: bool) -> None:
    """Each chunk costs as much as a hundred bytes."""
    messages = [{"role": "user", "content": "Say no more." + " " * 400_000}]
    content = json.dumps({"model": "toy", "messages": messages}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    cut = (content[start : start + size] for start in range(0, len(content), size))
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in cut) + b"0\r\n\r\n"
    async with serving(tmp_path) as stack, stack.raw() as (reader, writer):
        writer.write(head + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
        answer = await closed(reader)
        assert (b"the chunks of the request's body are too small" in answer) is refused
        assert answer.startswith(b"HTTP/1.1 400 ") is refused


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"GET / HTTP/9.9\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (HEAD + b"Content-Length: -1\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 9000 + b"\r\n\r\n", 431),
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n", 431),
    ],
)
async def test_what_is_not_http_gets_an_answer_in_our_shape(tmp_path: Path, sent: bytes, status: int) -> None:
    async with serving(tmp_path) as stack, stack.raw() as (reader, writer):
        writer.write(sent)
        answer = await closed(reader)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert re.match(rb"HTTP/1.[01] %d " % status, head)
        assert b"x-request-id" in head.lower()
        assert json.loads(body)["error"]["type"] == "invalid_request_error"


async def test_a_stream_over_http_1_0_ends_even_if_the_client_asks_to_keep_the_connection(tmp_path: Path) -> None:
    async with serving(tmp_path, idle_timeout=0.0) as stack, stack.raw() as (reader, writer):
        body = json.dumps({**CHAT, "stream": True}).encode()
        writer.write(HEAD.replace(b"HTTP/1.1", b"HTTP/1.0") + b"Connection: keep-alive\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        async with asyncio.timeout(PATIENCE):
            head, _, events = (await closed(reader)).partition(b"\r\n\r\n")
        assert b"connection: keep-alive" not in head.lower()
        assert events.endswith(b"data: [DONE]\n\n")


async def test_http_2_without_tls_is_refused_with_a_word(tmp_path: Path) -> None:
    async with serving(tmp_path) as stack, stack.raw() as (reader, writer):
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        head, _, body = (await closed(reader)).partition(b"\r\n\r\n")
        assert re.match(rb"HTTP/1.[01] 505 ", head)
        assert "HTTP/1.1" in json.loads(body)["error"]["message"]


async def test_an_offer_of_http_2_is_answered_in_http_1_1(tmp_path: Path) -> None:
    async with serving(tmp_path) as stack, stack.raw() as (reader, writer):
        body = json.dumps(CHAT).encode()
        writer.write(HEAD + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")


async def test_a_byte_order_mark_before_the_body_is_skipped(tmp_path: Path) -> None:
    async with serving(tmp_path) as stack, stack.raw() as (reader, writer):
        body = b"\xef\xbb\xbf" + json.dumps(CHAT).encode()
        writer.write(HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path, header_timeout=0.1, body_timeout=0.1, idle_timeout=0.1) as served:
        yield served


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(st.binary(max_size=40), st.sampled_from([HEAD, b"\r\n\r\n", b"GET / HTTP/1.1\r\n"]))))
async def test_no_bytes_bring_the_server_down(stack: Served, pieces: list[bytes]) -> None:
    async with stack.raw() as (reader, writer):
        writer.write(b"".join(pieces))
        answer = await closed(reader)
        assert not re.search(rb"HTTP/1.[01] 5", answer)
    await still_serves(stack)


async def flood(stack: Served, engine: Holding) -> asyncio.StreamWriter:
    """Ask for a stream over a small socket, hardly read it, and let the engine write until it is told to stop."""
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.setblocking(False)
    await asyncio.get_running_loop().sock_connect(slow, ("127.0.0.1", stack.port))
    reader, writer = await asyncio.open_connection(sock=slow, limit=1)
    body = json.dumps({**CHAT, "stream": True}).encode()
    writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    held = await engine.requests.get()
    while not held.cancelled.is_set():
        held.sink.tokens([100] * 20_000)
        # One byte is read for all these that are written.
        await reader.read(1)
        await asyncio.sleep(0)
    return writer


async def test_a_client_that_reads_a_byte_now_and_then_is_cut_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Holding()
    async with serving(tmp_path, engine, context=1 << 30) as stack:
        quick = asyncio.create_task(stack.chat(stream=True))
        other = await engine.requests.get()
        writer = await flood(stack, engine)
        other.sink.tokens([100])
        other.sink.end()
        assert (await (await quick).text()).endswith("data: [DONE]\n\n")
        assert (await stack.metrics())["dynamo_frontend_disconnected_clients"] == 1
        writer.close()
    assert any("cutting off a client that does not read" in record.getMessage() for record in caplog.records)


async def test_a_client_that_stops_reading_is_not_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dynamo.api.answers.sse.MAX_UNSENT", 1 << 40)  # not cut off for how much is unsent
    engine = Holding()
    caplog.set_level("INFO")
    async with serving(tmp_path, engine, context=1 << 30, stall_timeout=0.1) as stack:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", stack.port))
        body = json.dumps({**CHAT, "stream": True}).encode()
        slow.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        held = await engine.requests.get()
        cancelled = asyncio.create_task(held.cancelled.wait())
        while not (await asyncio.wait({cancelled}, timeout=0.002))[0]:
            # More than the sockets take.
            held.sink.tokens([100] * 5000)
        slow.close()
    assert any("too long to read its answer" in record.getMessage() for record in caplog.records)


async def test_hundreds_of_idle_connections_do_not_disturb_a_request(tmp_path: Path) -> None:
    async with serving(tmp_path) as stack, AsyncExitStack() as idle:
        for number in range(500):
            _, writer = await idle.enter_async_context(stack.raw())
            if number % 2:
                writer.write(b"GET /")
        for stream in (True, False):
            assert (await stack.chat(stream=stream)).status == 200


async def test_connections_beyond_the_limit_of_open_files_are_refused_and_the_others_served(tmp_path: Path) -> None:
    async with serving(tmp_path) as stack, stack.raw() as earlier:
        assert (await live(*earlier)).startswith(b"HTTP/1.1 200 OK")
        with few_files():
            async with AsyncExitStack() as opened:
                while True:
                    answer = await live(*await opened.enter_async_context(stack.raw()))
                    if not answer.startswith(b"HTTP/1.1 200 OK"):
                        break
                assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
                assert b"too many open connections" in answer
                assert (await live(*earlier)).startswith(b"HTTP/1.1 200 OK")
        assert (await stack.chat()).status == 200


async def live(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    writer.write(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return await reader.readuntil(b"}")
