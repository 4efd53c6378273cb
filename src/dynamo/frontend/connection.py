"""One HTTP connection, with limits on how long a client may take to send and to read.

The HTTP library limits idle time and the size of headers; the limits it lacks are added here.
"""

from __future__ import annotations

import asyncio
import logging
import uuid

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.web_request import BaseRequest
from msgspec import Struct

from dynamo.api.answers.errors import error_response
from dynamo.process.http_connection import LINGER, HttpConnection, UnfinishedHeaders
from dynamo.process.open_files import FileReserve
from dynamo.protocols.errors import HttpError

log = logging.getLogger(__name__)


FOREVER = 10 * 365 * 86400.0
HTTP2_PREFACE = b"PRI * HTTP/2"
"""The first bytes of a client that assumes that the server speaks HTTP/2."""


class ConnectionLimits(Struct, frozen=True, kw_only=True):
    """Seconds. Zero means no limit."""

    idle: float = 75.0
    """Between two requests."""
    header: float = 15.0
    """From the first byte of a request's header to its last."""
    stall: float = 60.0
    """How long a client may leave an answer unread once its socket is full."""


class Connection(HttpConnection):
    __slots__ = ("_busy", "_header_timer", "_is_http2", "_limits", "_stall_timer")

    def __init__(
        self, server: web.Server, limits: ConnectionLimits, reserve: FileReserve, headers: UnfinishedHeaders
    ) -> None:
        super().__init__(
            server,
            reserve,
            headers,
            holds_bodies=True,
            access_log=None,  # documented as: no log
            keepalive_timeout=limits.idle or FOREVER,
            lingering_time=LINGER,
            # The library would unpack bodies before their key and route are known, those it only discards too.
            auto_decompress=False,
        )
        self._limits = limits
        self._busy = False
        self._is_http2 = False
        self._header_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    def request_begun(self) -> None:
        """A request's header is complete."""
        self._busy = True
        if self._header_timer:
            self._header_timer.cancel()
            self._header_timer = None

    def request_ended(self) -> None:
        self._busy = False
        self.admitted()

    def data_received(self, data: bytes) -> None:
        if not self._discards and not self._busy and self._header_timer is None and self._limits.header:
            loop = asyncio.get_running_loop()
            self._header_timer = loop.call_later(self._limits.header, self._too_slow, "to send a header")
            self._is_http2 = data.startswith(HTTP2_PREFACE)
        super().data_received(data)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._limits.stall:
            loop = asyncio.get_running_loop()
            self._stall_timer = loop.call_later(self._limits.stall, self._too_slow, "to read its answer")

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall_timer:
            self._stall_timer.cancel()

    def connection_lost(self, exc: BaseException | None) -> None:
        for timer in (self._header_timer, self._stall_timer):
            if timer:
                timer.cancel()
        super().connection_lost(exc)

    def _too_slow(self, what: str) -> None:
        log.info("closing a connection from %s: it took too long %s", self.peername, what)
        if self.transport:
            self.transport.abort()

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Malformed or oversized HTTP gets an error of our own shape, and no traceback in the log."""
        request_id = str(uuid.uuid4())
        if status >= 500:
            log.error("%s failed before it reached a handler [%s]", request.rel_url.raw_path, request_id, exc_info=exc)
            error = HttpError(500, f"internal error (request id {request_id})")
        elif isinstance(exc, LineTooLong):
            error = HttpError(431, "a line of the request's header is too long")
        elif self._is_http2:
            error = HttpError(505, "HTTP/2 is not spoken here; use HTTP/1.1, or a proxy in front of this server")
        else:
            log.info("a client at %s did not send valid HTTP [%s]", self.peername, request_id)
            error = HttpError(400, "the request is not valid HTTP")
        response = error_response(error, request_id)
        response.force_close()
        return response
