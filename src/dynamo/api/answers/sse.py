"""Server-sent events straight onto the socket.

Once an answer is open its events are framed here and written to the transport by plain calls: no task is woken per
event, and all events of one turn of the loop leave a stream in one system call, the first together with the headers and
the last together with the end. Only this module knows how the bytes of a stream are sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from aiohttp import web

log = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"
EVENTS = "text/event-stream"
KEEP_ALIVE = b": keep-alive\n\n"
MAX_UNSENT = 4 * 1024 * 1024
"""A client that does not read is cut off when this much waits for it."""


class Cork:
    """Joins the writes of one turn of the loop: uvloop makes a system call of each."""

    __slots__ = ("_dirty", "_loop")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._dirty: list[EventStream] = []

    def add(self, stream: EventStream) -> None:
        if not self._dirty:
            self._loop.call_soon(self._flush)
        self._dirty.append(stream)

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, []
        for stream in dirty:
            stream.flush()


CORK = web.AppKey("cork", Cork)


class EventStream:
    """Holds events back until the answer is opened, so that an earlier failure can still become a status."""

    __slots__ = ("_begun", "_cork", "_response", "_transport", "_waiting", "chunked", "content_type", "ended")

    def __init__(self, content_type: str = EVENTS) -> None:
        loop = asyncio.get_running_loop()
        self._begun: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self._waiting: list[bytes] = []
        self._cork: Cork | None = None
        self._transport: asyncio.Transport | None = None
        self._response: web.StreamResponse | None = None
        self.chunked = True
        self.content_type = content_type

    def write(self, data: bytes) -> None:
        """Send one or more whole events."""
        waiting = self._waiting
        waiting.append(data)
        if self._cork is None:
            if not self._begun.done():
                self._begun.set_result(None)
        elif len(waiting) == 1:
            self._cork.add(self)

    def flush(self) -> None:
        """Send the events of this turn. The last ones of a stream wait for `close`, which sends the end with them."""
        waiting, transport = self._waiting, self._transport
        if not waiting or self.ended.done():
            return
        data = waiting[0] if len(waiting) == 1 else b"".join(waiting)
        waiting.clear()
        if transport is None:
            return
        try:
            transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data)
        except RuntimeError:
            # uvloop raises this once the client has left; the handler is about to be cancelled.
            self._transport = None
            return
        if transport.get_write_buffer_size() > MAX_UNSENT:
            self._cut_off(transport)

    def writer(self, choice: int) -> Callable[[bytes], None]:
        """Sends the events of one of several choices."""
        return self.write

    def fail(self, data: bytes) -> None:
        """Send the error that ends the stream."""
        self.end(data)

    def end(self, data: bytes = b"", choice: int = 0) -> None:
        """Send the last events, which are those of this choice; nothing may follow."""
        if not self.ended.done():
            self.ended.set_result(None)
        if data:
            self.write(data)
        if not self._begun.done():
            self._begun.set_result(None)

    @property
    def has_begun(self) -> bool:
        """Whether any event was written."""
        return self._response is not None or bool(self._waiting)

    @property
    def unsent(self) -> int:
        """Bytes that the client has not read yet, as far as this process holds them."""
        return self._transport.get_write_buffer_size() if self._transport else 0

    async def begun(self) -> None:
        """Wait for the first event or the end."""
        await self._begun

    async def kept_alive(self, request: web.Request, headers: dict[str, str], every: float) -> None:
        """Wait like `begun`, and meanwhile send a comment each time that `every` seconds have passed.

        The first comment sends the headers too, so from then on an error can only be an event.
        """
        while not (await asyncio.wait((self._begun,), timeout=every))[0]:
            if self.content_type != EVENTS:  # no other format has comments
                continue
            response = self._response or await self._prepare(request, headers)
            await response.write(KEEP_ALIVE)

    async def open(self, request: web.Request, headers: dict[str, str], before: bytes = b"") -> None:
        """Send the headers if they were not sent yet, then `before` and all waiting events."""
        response = self._response or await self._prepare(request, headers)
        if before:
            self._waiting.insert(0, before)
        self._transport = request.transport
        self._cork = request.app[CORK]
        if self._waiting and not self.ended.done():
            data = b"".join(self._waiting)
            self._waiting.clear()
            await response.write(data)

    async def _prepare(self, request: web.Request, headers: dict[str, str]) -> web.StreamResponse:
        # nginx, and proxies that took its header over, otherwise hold a stream back until much of it is there.
        response = _Response(headers={**headers, "X-Accel-Buffering": "no"})
        response.content_type = self.content_type
        self.chunked = request.version >= (1, 1)
        if self.chunked:
            response.enable_chunked_encoding()
        else:
            # HTTP/1.0 knows no chunks: only the end of the connection ends the stream.
            response.force_close()
        await response.prepare(request)
        self._response = response
        return response

    async def close(self) -> web.StreamResponse:
        """Send the last events and the end."""
        assert self._response
        self._transport = None
        with contextlib.suppress(ConnectionError):  # the client left while the last event was written
            await self._response.write_eof(b"".join(self._waiting))
        self._waiting.clear()
        return self._response

    def _cut_off(self, transport: asyncio.Transport) -> None:
        log.warning("cutting off a client that does not read: %d bytes wait for it", transport.get_write_buffer_size())
        self._transport = None
        transport.abort()


class _Response(web.StreamResponse):
    # With this private switch of aiohttp the headers leave together with the first bytes, which are there when a stream
    # is opened. If a version of aiohttp lacks the switch, the headers leave alone.
    _send_headers_immediately = False
