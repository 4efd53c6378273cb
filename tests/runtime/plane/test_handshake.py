"""Who may use a connection: the exchange of proofs, and peers that break off or go on without one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.protocols.errors import CannotConnect
from dynamo.runtime.handler import GeneratorHandler
from dynamo.runtime.names import EndpointId
from dynamo.runtime.plane import frames, handshake
from dynamo.runtime.plane.base import route_path
from dynamo.runtime.plane.client_link import ClientLink
from dynamo.runtime.plane.frames import FrameDecoder, Hello, Kind, Request, encode_payload, frame
from dynamo.runtime.plane.handshake import EVERY, PendingHandshakes
from dynamo.runtime.plane.route import Route
from dynamo.runtime.plane.server_link import ServerLink

PATH = route_path(EndpointId("a", "b", "c"), 1)


class Wire:
    """What one side has written and the other has not read; `sent` keeps all of it."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self._read = 0

    def take(self) -> bytes:
        new, self._read = b"".join(self.sent[self._read :]), len(self.sent)
        return new


class Worker:
    def __init__(self, token: str | None) -> None:
        self.requests: list[Any] = []
        self.wire = Wire()

        async def keep(request: Any) -> Any:
            self.requests.append(request)
            yield request

        self.link = ServerLink(
            self.wire.sent.append, "client", {PATH: Route(PATH, GeneratorHandler(keep))}, token=token, beat=60.0
        )

    def feed(self, *sent: bytes) -> list[tuple[int, Any]]:
        for data in sent:
            self.link.feed(data)
        self.link.flush()
        return FrameDecoder().feed(self.wire.take())


def connected(worker: Worker, token: str | None) -> tuple[ClientLink, list[bytes]]:
    """A client after the exchange, and all it has sent."""
    wire = Wire()
    client = ClientLink(wire.sent.append, "worker", token=token, beat=60.0)
    while True:
        client.flush()
        to_worker = wire.take()
        worker.link.feed(to_worker)
        worker.link.flush()
        to_client = worker.wire.take()
        if not to_client:
            return client, wire.sent
        client.feed(to_client)


REQUEST = frame(Kind.REQUEST, Request(1, PATH, "id", encode_payload("x")))


@pytest.mark.parametrize("token", [None, "secret"])
async def test_sides_with_the_same_token_welcome_each_other(token: str | None) -> None:
    worker = Worker(token)
    client, _ = connected(worker, token)
    assert client.greeted.done()
    assert client.greeted.exception() is None
    assert not worker.link.lost


@pytest.mark.parametrize(("here", "there"), [("a", "b"), ("a", None), (None, "b")])
async def test_sides_with_different_tokens_part(here: str | None, there: str | None) -> None:
    worker = Worker(there)
    client, _ = connected(worker, here)
    with pytest.raises(CannotConnect, match="token"):
        await client.greeted
    worker.feed(REQUEST)
    assert worker.requests == []


async def test_the_token_itself_is_never_sent() -> None:
    worker = Worker("very secret")
    _, sent = connected(worker, "very secret")
    assert b"very secret" not in b"".join((*sent, *worker.wire.sent))


async def test_a_recorded_exchange_opens_no_second_connection() -> None:
    _, sent = connected(Worker("secret"), "secret")
    worker = Worker("secret")
    answers = worker.feed(*sent, REQUEST)
    assert worker.link.lost
    assert worker.requests == []
    assert [kind for kind, _ in answers] == [Kind.HELLO, Kind.ERROR]


async def test_a_workers_own_proof_is_not_one_of_a_client() -> None:
    worker = Worker("secret")
    nonce = handshake.nonce()
    ((_, hello),) = worker.feed(frame(Kind.HELLO, Hello(nonce=nonce)))
    reflected = handshake.proof("secret", "worker", nonce, hello.nonce)
    worker.feed(frame(Kind.PROOF, reflected))
    assert worker.link.lost


async def test_a_request_before_the_proof_is_refused() -> None:
    worker = Worker("secret")
    worker.feed(frame(Kind.HELLO, Hello(nonce=handshake.nonce())), REQUEST)
    assert worker.link.lost
    assert worker.requests == []


@pytest.mark.parametrize("token", [None, "secret"])
async def test_a_large_frame_before_the_greeting_is_refused_by_its_header(token: str | None) -> None:
    worker = Worker(token)
    worker.feed(frames.HEADER.pack(frames.MAX_GREETING + 1, Kind.HELLO))
    assert worker.link.lost


@given(st.lists(st.one_of(st.binary(max_size=80), st.builds(lambda body: frame(Kind.PROOF, body), st.binary()))))
def test_no_bytes_of_a_stranger_reach_a_handler(sent: list[bytes]) -> None:
    async def run() -> None:
        worker = Worker("secret")
        worker.feed(frame(Kind.HELLO, Hello(nonce=handshake.nonce())), *sent, REQUEST)
        assert worker.requests == []

    asyncio.run(run())


def test_many_strangers_are_one_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    handshakes = PendingHandshakes(lambda: now[0])
    for _ in range(100):
        handshakes.rejected("10.0.0.9:1", "no hello")
    now[0] = EVERY
    handshakes.rejected("10.0.0.9:2", "no hello")
    assert [one.message for one in caplog.records] == [
        "closing the connection with 10.0.0.9:1: no hello",
        "closing the connection with 10.0.0.9:2: no hello (99 more were refused since the last such line)",
    ]
