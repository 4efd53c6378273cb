"""A connection to an HTTP server, with limits on what it takes before it has asked for anything: a file, and memory."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from aiohttp import StreamReader, web
from aiohttp.streams import EMPTY_PAYLOAD

from dynamo.process.open_files import FileReserve
from dynamo.protocols.errors import HttpError

HEADER = 32 << 10
"""Bytes of a header that is not complete, in all its lines. A slice more than this may come at once."""
HEADERS = 8 << 20
"""Bytes of all such headers. The parser keeps up to five times as much for them."""
SLICE = 16 << 10
"""Bytes given to the parser at a time, so that it keeps no longer header than is counted."""
READ = 32 << 10
"""Bytes read from a connection at a time: what many of them have sent is read in one turn of the loop, before any
request of theirs is looked at."""
SMALL = 2 << 10
"""Bytes that may be a request's body in chunks of a byte: the parser keeps up to 16 times as much for those."""
OVERHEAD = 256 << 10
"""Bytes of a body that are not its content, beside a quarter of the content: each chunk costs the parser as much as a
hundred bytes."""
END = b"\r\n\r\n"
"""The end of a header."""
FULL = b"""{"error":{"message":"This server has too many open connections. Please retry shortly.",\
"type":"service_unavailable_error","param":null,"code":"unavailable"}}"""
REJECTION = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
REJECTION += b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(FULL), FULL)
LONG = b"""{"error":{"message":"The request's header is longer than 32 KiB.",\
"type":"invalid_request_error","param":null,"code":null}}"""
TOO_LONG = b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: application/json\r\n"
TOO_LONG += b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(LONG), LONG)
LINGER = 2.0
"""Seconds to keep reading what is answered before its end: a closed connection would hide the answer."""


class UnfinishedHeaders:
    """The headers still arriving at one server. Beyond `budget` bytes the connection of the oldest is closed."""

    def __init__(self, budget: int = HEADERS) -> None:
        self._budget = budget
        self._sizes: dict[HttpConnection, int] = {}
        self._total = 0

    def count(self, connection: HttpConnection, size: int) -> None:
        """`size` is that of the connection's header so far."""
        self._total += size - self._sizes.get(connection, 0)
        self._sizes[connection] = size
        while self._total > self._budget:
            next(iter(self._sizes)).abort()

    def forget(self, connection: HttpConnection) -> None:
        self._total -= self._sizes.pop(connection, 0)


class BoundedReads(asyncio.BufferedProtocol):
    """What a server's transport talks to instead of the connection, so that it reads no more than `READ` at a time."""

    __slots__ = ("_connection", "connection_lost", "eof_received", "pause_writing", "resume_writing")

    _buffer = memoryview(bytearray(READ))
    """All connections share it: it is emptied before the next one is read."""

    def __init__(self, connection: HttpConnection) -> None:
        self._connection = connection
        self.connection_lost = connection.connection_lost  # type: ignore[method-assign]
        self.eof_received = connection.eof_received  # type: ignore[method-assign]
        self.pause_writing = connection.pause_writing  # type: ignore[method-assign]
        self.resume_writing = connection.resume_writing  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connection.connection_made(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._connection.data_received(bytes(self._buffer[:nbytes]))


class HttpConnection(web.RequestHandler):
    __slots__ = (
        "_body", "_body_size", "_discards", "_header_size", "_headers", "_held", "_holds", "_rejected", "_reserve",
        "_until_closed",
    )  # fmt: skip

    def __init__(
        self,
        server: web.Server,
        reserve: FileReserve,
        headers: UnfinishedHeaders,
        *,
        holds_bodies: bool = False,
        **options: Any,
    ) -> None:
        """`holds_bodies`: one that is not complete with its header is neither parsed nor read on before `admitted`."""
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self._reserve = reserve
        self._headers = headers
        self._header_size = 0
        self._body: StreamReader = EMPTY_PAYLOAD
        """That of the last request whose header was complete."""
        self._holds = holds_bodies
        self._held: bytearray | None = None
        """What was read of a body that is held; None if none is."""
        self._body_size = 0
        """Bytes that have come of it, with the frames of its chunks."""
        self._rejected = False
        """Before anything was asked."""
        self._discards = False
        """What arrives is neither parsed nor kept."""
        self._until_closed: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._reserve.is_reached(transport.get_extra_info("socket").fileno()):
            self._rejected = self._discards = True
            self._answer_and_close(cast("asyncio.Transport", transport), REJECTION)
        else:
            super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._held is not None:
            self._hold(data)
        elif not self._body.is_eof() or (len(data) <= SLICE and not self._may_be_chunked(data)):
            self._received(data)
        else:
            self._headers_received(data)

    def _may_be_chunked(self, data: bytes) -> bool:
        """Its body could be thousands of chunks, each of which costs the parser more than its bytes."""
        return len(data) > SMALL and self._holds and (self._header_size > 0 or b"chunked" in data.lower())

    def _headers_received(self, data: bytes) -> None:
        """Parse it header by header, in slices, and not a byte more of what comes after one whose body is held."""
        start = 0
        if self._header_size and self._holds:
            # The end of the header may begin in what came before.
            self._received(data[: len(END)])
            start = len(END)
        while start < len(data):
            if self._held is not None:
                self._hold(data[start:])
                return
            if not self._body.is_eof():
                self._received(data[start:])
                return
            stop = start + SLICE
            if self._holds and (end := data.find(END, start, stop)) >= 0:
                stop = end + len(END)
            self._received(data[start:stop])
            start = stop

    def admitted(self) -> None:
        """The request under way may send its body."""
        held, self._held = self._held, None
        if held is None:
            return
        if self.transport and not (self._reading_paused or self._buffer_paused):
            self.transport.resume_reading()
        if held:
            self._received(bytes(held))

    def eof_received(self) -> None:
        if not self._rejected:
            super().eof_received()

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._until_closed:
            self._until_closed.cancel()
        self._headers.forget(self)
        if not self._rejected:
            super().connection_lost(exc)

    def discard(self) -> None:
        """Keep nothing of what else the client sends. The answer under way must say that the connection closes."""
        self._discards = True
        self.admitted()
        # It holds what has come of the next header, or of the fields after the body.
        self._parser = None
        self._headers.forget(self)

    def abort(self) -> None:
        self.discard()
        if self.transport:
            self.transport.abort()

    def _received(self, data: bytes) -> None:
        if self._discards:
            return
        before, is_header = self._request_count, self._body.is_eof()
        super().data_received(data)
        if self._request_count != before and not self._body.is_eof():
            # What follows a body that has not ended is an error in it, of which its reader knows nothing yet.
            self._messages.pop()
            self._refuse_body("the request's body is not valid HTTP")
        elif self._request_count != before:
            self._body, self._body_size = self._messages[-1][1], 0
            if self._holds and not self._body.is_eof():
                self._hold(b"")
            if self._header_size:
                self._header_size = 0
                self._headers.forget(self)
        elif not is_header:
            self._body_size += len(data)
            content = self._body.total_bytes
            if self._body_size - content > OVERHEAD + content // 4 and not self._body.is_eof():
                self._refuse_body("the chunks of the request's body are too small")
        else:
            self._header_size += len(data)
            if self._header_size > HEADER:
                self._refuse_header()
            elif data:
                self._headers.count(self, self._header_size)

    def _refuse_body(self, why: str) -> None:
        self._body.set_exception(HttpError(400, why))
        self.discard()
        self.close()

    def _hold(self, data: bytes) -> None:
        if self._discards:
            return
        if self._held is None:
            self._held = bytearray()
        self._held += data
        if self.transport:
            self.transport.pause_reading()

    def _refuse_header(self) -> None:
        if self.transport is None or self._messages or self._request_in_progress:
            self.abort()
        else:
            self.discard()
            self._answer_and_close(self.transport, TOO_LONG)

    def _answer_and_close(self, transport: asyncio.Transport, answer: bytes) -> None:
        """Read on for a while: a connection that is closed at once might hide its answer."""
        transport.write(answer)
        if transport.can_write_eof():
            transport.write_eof()
            self._until_closed = asyncio.get_running_loop().call_later(LINGER, transport.abort)
        else:
            transport.close()
