"""Server-sent events straight onto the socket.

After `prepare`, chunks are framed here and written to the transport by plain calls: no task is woken per event, and the
loop joins what one turn writes. This is the one place that knows how bytes leave an answer that streams.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

import msgspec
from aiohttp import web

log = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
MAX_UNSENT = 4 * 1024 * 1024
"""A client that does not read is cut off when this much waits for it."""


class EventStream:
    """Events wait until the answer has been opened, so that a failure before the first one can still be a status."""

    __slots__ = ("_begun", "_response", "_transport", "_waiting", "chunked", "ended")

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._begun: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self._waiting: list[bytes] | None = []
        self._transport: asyncio.Transport | None = None
        self._response: web.StreamResponse | None = None
        self.chunked = True

    def write(self, data: bytes) -> None:
        """Send one or more whole events."""
        transport = self._transport
        if transport is None:
            if self._waiting is not None:
                self._waiting.append(data)
                if not self._begun.done():
                    self._begun.set_result(None)
            return
        try:
            transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data)
        except RuntimeError:
            # uvloop's way to say that the client has left; the handler will hear of it in a moment.
            self._transport = None
            return
        if transport.get_write_buffer_size() > MAX_UNSENT:
            self._cut_off(transport)

    def end(self, data: bytes = b"") -> None:
        """Send what is last; nothing may follow."""
        if data:
            self.write(data)
        if not self._begun.done():
            self._begun.set_result(None)
        if not self.ended.done():
            self.ended.set_result(None)

    @property
    def has_begun(self) -> bool:
        """Whether any event was written."""
        return self._response is not None or bool(self._waiting)

    async def begun(self) -> None:
        """Wait for the first event or the end."""
        await self._begun

    async def kept_alive(self, request: web.Request, headers: dict[str, str], every: float) -> None:
        """Wait like `begun`; as long as that takes, send a comment every so many seconds.

        The first comment sends the headers too, so from then on an error can only be an event.
        """
        while not (await asyncio.wait((self._begun,), timeout=every))[0]:
            if self._response is None:
                await self._prepare(request, headers)
            if request.transport:
                request.transport.write(self._framed(KEEP_ALIVE))

    async def open(self, request: web.Request, headers: dict[str, str], before: bytes = b"") -> None:
        """Send the headers, if they are not out yet, what comes before all events, and everything that waits."""
        if self._response is None:
            await self._prepare(request, headers)
        waiting, self._waiting = self._waiting or [], None
        self._transport = request.transport
        if before or waiting:
            self.write(before + b"".join(waiting))

    async def _prepare(self, request: web.Request, headers: dict[str, str]) -> None:
        response = web.StreamResponse(headers=headers)
        response.content_type = "text/event-stream"
        self.chunked = request.version >= (1, 1)
        if self.chunked:
            response.enable_chunked_encoding()
        await response.prepare(request)
        self._response = response

    def _framed(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data

    async def close(self) -> web.StreamResponse:
        assert self._response
        self._transport = None
        with contextlib.suppress(ConnectionError):  # the client left while the last event was written
            await self._response.write_eof()
        return self._response

    def _cut_off(self, transport: asyncio.Transport) -> None:
        log.warning("cutting off a client that does not read: %d bytes wait for it", transport.get_write_buffer_size())
        self._transport = None
        transport.abort()


def unescaped(text: str) -> str:
    """What stands between the quotes of a JSON string, as text again."""
    return msgspec.json.decode(f'"{text}"', type=str)
