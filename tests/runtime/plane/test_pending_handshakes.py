from __future__ import annotations

import asyncio

import pytest

from dynamo.runtime.plane import frames
from dynamo.runtime.plane.frames import HEADER, Hello, Kind, frame
from dynamo.runtime.plane.handshake import PendingHandshakes
from dynamo.runtime.plane.server_link import ServerLink


def link(handshakes: PendingHandshakes | None = None) -> ServerLink:
    return ServerLink(lambda data: None, "a stranger", {}, handshakes=handshakes, beat=60.0)


async def lost(one: ServerLink) -> None:
    gone = asyncio.Event()
    one.when_lost(gone.set)
    await gone.wait()


async def test_a_large_frame_before_hello_closes_the_connection_at_its_first_bytes() -> None:
    stranger = link()
    stranger.feed(HEADER.pack(frames.MAX_GREETING + 1, Kind.REQUEST))
    assert stranger.lost


async def test_after_hello_large_frames_are_read() -> None:
    peer = link()
    peer.feed(frame(Kind.HELLO, Hello()))
    peer.feed(HEADER.pack(frames.MAX_FRAME, Kind.REQUEST))
    assert not peer.lost


async def test_a_connection_without_hello_is_closed_after_a_while() -> None:
    await lost(link(PendingHandshakes(patience=0.01)))


async def test_a_greeted_connection_stays_open() -> None:
    handshakes = PendingHandshakes(patience=0.01)
    peer = link(handshakes)
    peer.feed(frame(Kind.HELLO, Hello()))
    await lost(link(handshakes))
    assert not peer.lost


@pytest.mark.parametrize("count", [3, 10])
async def test_of_too_many_strangers_the_oldest_is_closed(count: int) -> None:
    handshakes = PendingHandshakes(limit=2)
    links = [link(handshakes) for _ in range(count)]
    assert [each.lost for each in links] == [True] * (count - 2) + [False, False]
    for each in links[-2:]:
        each.feed(frame(Kind.HELLO, Hello()))
