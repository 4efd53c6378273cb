"""When what is sent leaves: at the end of a turn of the loop, or before it once it has grown large."""

from __future__ import annotations

import asyncio

from dynamo.protocols.errors import Disconnected, DynamoException
from dynamo.runtime.plane.frames import Error, FrameDecoder, Kind
from dynamo.runtime.plane.link import MAX_GATHERED, Link
from support.waiting import PATIENCE


class Writing(Link):
    """One end of a connection that keeps what it writes, and waits for an answer."""

    def __init__(self, beat: float = 60.0) -> None:
        self.written: list[bytes] = []
        super().__init__(self.written.append, "peer", beat=beat, close=lambda: None)
        self._calls[1] = "an open stream"
        self.lost_by: asyncio.Future[DynamoException] = asyncio.get_running_loop().create_future()

    def _lost(self, error: DynamoException) -> None:
        self.lost_by.set_result(error)


async def test_what_one_turn_sends_leaves_in_one_write_at_its_end() -> None:
    link = Writing()
    for stream in range(3):
        link.send(Kind.ERROR, Error(stream, "kind", "message"))
        link.send_tokens(stream, [1, 2, 3])
    assert not link.written
    await asyncio.sleep(0)
    assert len(link.written) == 1


async def test_what_has_grown_large_leaves_before_the_turn_ends_and_in_order() -> None:
    link = Writing()
    link.send_tokens(1, [1, 2, 3])
    link.send(Kind.ERROR, Error(1, "kind", "x" * MAX_GATHERED))
    assert len(link.written) == 1
    link.send(Kind.ERROR, Error(2, "kind", "message"))
    assert len(link.written) == 1
    await asyncio.sleep(0)
    assert len(link.written) == 2
    sent = list(FrameDecoder().feed(b"".join(link.written)))
    assert [kind for kind, _ in sent] == [Kind.DELTAS, Kind.ERROR, Kind.ERROR]
    assert [body.stream for _, body in sent[1:]] == [1, 2]


async def test_first_tokens_leave_before_tokens_of_streams_that_are_under_way_are_gathered() -> None:
    link = Writing()
    for stream in (8, 9):
        link.send_first_tokens(stream, [stream])
    assert not link.written
    for stream in (1, 2):
        link.send_tokens(stream, [stream])
    assert len(link.written) == 1
    await asyncio.sleep(0)
    assert len(link.written) == 2
    deltas = [body for written in link.written for kind, body in FrameDecoder().feed(written) if kind == Kind.DELTAS]
    assert [dict(each) for each in deltas] == [{8: [8], 9: [9]}, {1: [1], 2: [2]}]


async def test_a_peer_that_stays_silent_after_a_large_frame_is_noticed() -> None:
    link = Writing(beat=0.01)
    link.send(Kind.ERROR, Error(1, "kind", "x" * MAX_GATHERED))
    async with asyncio.timeout(PATIENCE):
        assert isinstance(await link.lost_by, Disconnected)
