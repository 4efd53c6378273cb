"""What a client can make the server keep before its key is known to be good."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dynamo.process import http_connection
from support.serving import serving

LINE = b"x-filler: " + b"x" * 8000 + b"\r\n"
BEGINNING = b"GET /live HTTP/1.1\r\nHost: localhost\r\n"


async def closed(reader: asyncio.StreamReader) -> bytes:
    """Everything until the server hangs up."""
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


async def test_a_header_may_not_be_longer_than_its_limit_in_all(tmp_path: Path) -> None:
    async with serving(tmp_path) as stack, stack.raw() as (reader, writer):
        writer.write(BEGINNING + 8 * LINE)
        assert (await closed(reader)).startswith(b"HTTP/1.1 431 ")


async def test_a_header_that_arrives_at_once_has_the_same_limit(tmp_path: Path) -> None:
    async with serving(tmp_path) as stack, stack.raw() as (reader, writer):
        writer.write(BEGINNING + 8 * LINE + b"\r\n")
        assert (await closed(reader)).startswith(b"HTTP/1.1 431 ")


async def test_a_long_header_behind_a_complete_request_is_not_kept(tmp_path: Path) -> None:
    async with serving(tmp_path) as stack, stack.raw() as (reader, writer):
        writer.write(BEGINNING + b"\r\n" + BEGINNING + 8 * LINE)
        await closed(reader)


async def test_a_header_of_some_lines_is_served_however_it_is_cut(tmp_path: Path) -> None:
    request = BEGINNING + 3 * LINE + b"\r\n"
    async with serving(tmp_path) as stack, stack.raw() as (reader, writer):
        for size in (len(request), 5000, 997):
            for start in range(0, len(request), size):
                writer.write(request[start : start + size])
                await writer.drain()
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            await reader.readuntil(b"}")


async def test_pipelined_requests_are_no_long_header(tmp_path: Path) -> None:
    async with serving(tmp_path) as stack, stack.raw() as (reader, writer):
        writer.write((BEGINNING + LINE + b"\r\n") * 20)
        for _ in range(20):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            await reader.readuntil(b"}")


async def test_beyond_the_budget_of_all_headers_the_oldest_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = http_connection.UnfinishedHeaders(20_000)
    monkeypatch.setattr("dynamo.frontend.server.UnfinishedHeaders", lambda: budget)
    async with (
        serving(tmp_path, header_timeout=0.0) as stack,
        stack.raw() as (oldest, first),
        stack.raw() as (_, second),
        stack.raw() as (reader, third),
    ):
        for writer in (first, second, third):
            writer.write(BEGINNING + LINE)
            await writer.drain()
        assert await closed(oldest) == b""
        third.write(b"\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")


async def test_a_client_without_a_key_is_not_told_to_go_on(tmp_path: Path) -> None:
    async with serving(tmp_path, api_keys=("right",)) as stack:
        for key, answer in ((b"wrong", b"HTTP/1.1 401 "), (b"right", b"HTTP/1.1 100 ")):
            async with stack.raw() as (reader, writer):
                writer.write(
                    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                    b"Authorization: Bearer " + key + b"\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
                )
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(answer)
                writer.write(b"{}")
                if key == b"right":
                    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 400 ")


async def test_an_unknown_expectation_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as stack, stack.raw() as (reader, writer):
        writer.write(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nExpect: miracles\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 417 ")


async def test_the_rest_of_a_refused_body_is_not_kept(tmp_path: Path) -> None:
    async with serving(tmp_path, api_keys=("right",)) as stack, stack.raw() as (reader, writer):
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 401 ")
        assert b"connection: close" in head.lower()
        # It would be the end of the body, and a second request.
        writer.write(b"0\r\n\r\n" + BEGINNING + b"\r\n")
        assert b"HTTP/1.1 200" not in await closed(reader)
