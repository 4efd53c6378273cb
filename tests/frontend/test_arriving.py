from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import StreamReader, web
from aiohttp.base_protocol import BaseProtocol

from dynamo.frontend.bodies import ArrivingBodies
from dynamo.protocols.errors import ResourceExhausted
from support.serving import CHAT, serving

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def stream() -> StreamReader:
    loop = asyncio.get_running_loop()
    protocol = BaseProtocol(loop)
    protocol.connection_made(asyncio.Transport())
    return StreamReader(protocol, 1 << 16, loop=loop)


async def test_a_body_in_pieces_is_read_whole() -> None:
    content, arriving = stream(), ArrivingBodies(100)
    reading = asyncio.create_task(arriving.read(content, 100))
    for piece in (b"ab", b"c", b"def"):
        content.feed_data(piece)
        await asyncio.sleep(0)
    content.feed_eof()
    assert await reading == b"abcdef"


async def test_the_largest_arriving_body_is_refused_where_all_exceed_the_budget() -> None:
    arriving = ArrivingBodies(100)
    large, small = stream(), stream()
    for content, size in ((large, 60), (small, 30)):
        content.feed_data(bytes(size))
    reading = [asyncio.create_task(arriving.read(content, 1000)) for content in (large, small)]
    await asyncio.sleep(0)
    small.feed_data(bytes(20))
    small.feed_eof()
    with pytest.raises(ResourceExhausted):
        await reading[0]
    assert len(await reading[1]) == 50


async def test_a_body_that_ended_no_longer_counts() -> None:
    arriving = ArrivingBodies(100)
    for _ in range(5):
        content = stream()
        content.feed_data(bytes(90))
        content.feed_eof()
        assert len(await arriving.read(content, 100)) == 90


async def test_a_body_over_its_own_limit_is_refused_as_soon_as_it_exceeds_it() -> None:
    content = stream()
    content.feed_data(bytes(11))
    with pytest.raises(web.HTTPRequestEntityTooLarge):
        await ArrivingBodies(0).read(content, 10)


async def test_unfinished_bodies_are_refused_and_others_answered(tmp_path: Path) -> None:
    async with serving(tmp_path, arriving_bodies_mb=1) as stack, stack.raw() as (large, writer):
        writer.write(HEAD + b"Content-Length: 2000000\r\n\r\n" + bytes(900_000))
        async with stack.raw() as (_, other):
            # The second body alone would fit: the first, being larger, is refused when both do not.
            other.write(HEAD + b"Content-Length: 2000000\r\n\r\n" + bytes(500_000))
            assert (await large.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 503 ")
            assert b"are arriving" in await large.read()
            assert (await stack.chat()).status == 200


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"model": "tiny", "prompt": [1] * 20_000}),
        ("/v1/chat/completions", {**CHAT, "documents": [{"a": list(range(20_000))}]}),
        ("/tokenize", {"model": "tiny", "prompt": "a", "x": [1] * 20_000}),
    ],
)
async def test_a_body_of_too_many_values_is_answered_400(tmp_path: Path, path: str, fields: dict[str, Any]) -> None:
    async with serving(tmp_path, body_items=10_000) as stack:
        answer = await stack.http.post(stack.url + path, json=fields)
        assert answer.status == 400
        assert "values in lists and objects" in await answer.text()
