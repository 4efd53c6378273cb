"""A connection to an HTTP server, with limits on what it takes before it has asked for anything: a file, and memory."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from aiohttp import StreamReader, web
from aiohttp.streams import EMPTY_PAYLOAD

from dynamo.process.open_files import FileReserve

HEADER = 32 << 10
"""Bytes of a header that is not complete, in all its lines. A slice more than this may come at once."""
HEADERS = 8 << 20
"""Bytes of all such headers. The parser keeps up to five times as much for them."""
SLICE = 16 << 10
"""Bytes given to the parser at a time, so that it keeps no longer header than is counted."""
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


class HttpConnection(web.RequestHandler):
    __slots__ = ("_body", "_discards", "_header_size", "_headers", "_rejected", "_reserve", "_until_closed")

    def __init__(self, server: web.Server, reserve: FileReserve, headers: UnfinishedHeaders, **options: Any) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self._reserve = reserve
        self._headers = headers
        self._header_size = 0
        self._body: StreamReader = EMPTY_PAYLOAD
        """That of the last request whose header was complete."""
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
        if len(data) <= SLICE or not self._body.is_eof():
            self._received(data)
            return
        for start in range(0, len(data), SLICE):
            if not self._body.is_eof():
                self._received(data[start:])
                return
            self._received(data[start : start + SLICE])

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
        if self._request_count != before:
            self._body = self._messages[-1][1]
            if self._header_size:
                self._header_size = 0
                self._headers.forget(self)
        elif is_header:
            self._header_size += len(data)
            if self._header_size > HEADER:
                self._refuse_header()
            elif data:
                self._headers.count(self, self._header_size)

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
