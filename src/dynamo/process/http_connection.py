"""A connection to an HTTP server that is rejected where it would take one of the last files the process may open."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from aiohttp import web

from dynamo.process.open_files import FileReserve

FULL = b"""{"error":{"message":"This server has too many open connections. Please retry shortly.",\
"type":"service_unavailable_error","param":null,"code":"unavailable"}}"""
REJECTION = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
REJECTION += b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(FULL), FULL)
LINGER = 2.0
"""Seconds to keep reading after a rejection: a connection closed at once would hide the response."""


class HttpConnection(web.RequestHandler):
    __slots__ = ("_rejected", "_reserve", "_until_closed")

    def __init__(self, server: web.Server, reserve: FileReserve, **options: Any) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self._reserve = reserve
        self._rejected = False
        self._until_closed: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._reserve.is_reached(transport.get_extra_info("socket").fileno()):
            self._reject(cast("asyncio.Transport", transport))
        else:
            super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if not self._rejected:
            super().data_received(data)

    def eof_received(self) -> None:
        if not self._rejected:
            super().eof_received()

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._until_closed:
            self._until_closed.cancel()
        if not self._rejected:
            super().connection_lost(exc)

    def _reject(self, transport: asyncio.Transport) -> None:
        """Send the rejection, and read on for a while: a connection closed at once might hide the response."""
        self._rejected = True
        transport.write(REJECTION)
        if transport.can_write_eof():
            transport.write_eof()
            self._until_closed = asyncio.get_running_loop().call_later(LINGER, transport.abort)
        else:
            transport.close()
