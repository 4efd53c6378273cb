"""The two ends of a connection: what frames mean, without saying how the bytes travel.

All deltas that arise in one turn of the event loop leave in one frame, and all frames in one write.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from dynamo.protocols.errors import (
    Cancelled,
    CannotConnect,
    Disconnected,
    DynamoException,
    InvalidArgument,
    ProtocolError,
    Unavailable,
    from_wire,
    to_wire,
)
from dynamo.runtime.context import Context
from dynamo.runtime.plane import frames
from dynamo.runtime.plane.frames import FrameDecoder, Kind
from dynamo.runtime.plane.route import Route
from dynamo.runtime.stream import Sink

log = logging.getLogger(__name__)


class Link:
    """Outgoing frames are gathered and written once per turn of the loop; silence is noticed by pings."""

    def __init__(self, write: Callable[[bytes], None], peer: str, *, beat: float, patience: int = 4) -> None:
        self.peer = peer
        self.lost = False
        self._when_lost: list[Callable[[], object]] = []
        self._write = write
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder()
        self._deltas: frames.Deltas = {}
        self._frames: list[bytes] = []
        self._scheduled = False
        self._beat_every = beat
        self._patience = patience
        self._silent_beats = 0
        self._beat_timer: asyncio.TimerHandle | None = None
        self._on: dict[int, Callable[[Any], None]] = {Kind.PING: self._ping, Kind.PONG: lambda _: None}

    @property
    def busy(self) -> bool:
        raise NotImplementedError

    def when_lost(self, callback: Callable[[], object]) -> None:
        self._when_lost.append(callback)

    def feed(self, data: bytes) -> None:
        """Bytes from the peer. What is not in the protocol ends this connection and touches no other."""
        self._silent_beats = 0
        try:
            messages = self._decoder.feed(data)
            for kind, body in messages:
                handle = self._on.get(kind)
                if handle is None:
                    raise ProtocolError(f"{Kind(kind).name} frame is not for this side")
                handle(body)
        except ProtocolError as error:
            log.warning("closing the connection with %s: %s", self.peer, error)
            self.lose(error)

    def send(self, kind: Kind, body: Any = None) -> None:
        encoded = frames.frame(kind, body)
        if self._deltas:
            self._settle()
        self._frames.append(encoded)
        if not self._scheduled:
            self._schedule()

    def send_tokens(self, stream: int, ids: list[int]) -> None:
        deltas = self._deltas
        before = deltas.get(stream)
        deltas[stream] = ids if before is None else before + ids
        if not self._scheduled:
            self._schedule()

    def flush(self) -> None:
        self._scheduled = False
        if self._deltas:
            self._settle()
        if self._frames and not self.lost:
            data = self._frames[0] if len(self._frames) == 1 else b"".join(self._frames)
            self._frames.clear()
            self._write(data)

    def _settle(self) -> None:
        self._frames.append(frames.frame(Kind.DELTAS, self._deltas))
        self._deltas.clear()

    def _schedule(self) -> None:
        self._scheduled = True
        self._loop.call_soon(self.flush)
        if self._beat_timer is None:
            self._beat_timer = self._loop.call_later(self._beat_every, self._beat)

    def _beat(self) -> None:
        """While streams are open the peer must be heard from; an idle connection costs nothing."""
        self._beat_timer = None
        if self.lost or not self.busy:
            self._silent_beats = 0
            return
        self._silent_beats += 1
        if self._silent_beats > self._patience:
            self.lose(Disconnected(f"nothing heard from {self.peer} for {self._patience * self._beat_every:g} s"))
            return
        self.send(Kind.PING)

    def _ping(self, _: None) -> None:
        self.send(Kind.PONG)

    def lose(self, error: DynamoException) -> None:
        """The connection is gone, or must go."""
        if self.lost:
            return
        self.flush()
        self.lost = True
        if self._beat_timer:
            self._beat_timer.cancel()
            self._beat_timer = None
        self._close_transport()
        for callback in self._when_lost:
            callback()
        self._lost(error)

    def _close_transport(self) -> None:
        """Overridden by whoever owns a transport."""

    def _lost(self, error: DynamoException) -> None:
        raise NotImplementedError


class ServerLink(Link):
    """A worker's end: requests come in, their handlers' streams go out."""

    def __init__(
        self,
        write: Callable[[bytes], None],
        peer: str,
        routes: Mapping[str, Route],
        *,
        token: str | None = None,
        beat: float,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(write, peer, beat=beat)
        self._routes = routes
        self._token = token
        self._close = close
        self._greeted = False
        self._calls: dict[int, Context] = {}
        self._room: asyncio.Future[None] | None = None
        self._on |= {Kind.HELLO: self._hello, Kind.REQUEST: self._request, Kind.CANCEL: self._cancel}

    @property
    def busy(self) -> bool:
        return bool(self._calls)

    def tell_draining(self, path: str) -> None:
        if not self.lost:
            self.send(Kind.DRAINING, path)

    def pause(self) -> None:
        if self._room is None:
            self._room = self._loop.create_future()

    def resume(self) -> None:
        if self._room is not None:
            self._room.set_result(None)
            self._room = None

    async def room(self) -> None:
        if self._room is not None:
            await self._room

    def forget(self, stream: int) -> None:
        self._calls.pop(stream, None)

    def _hello(self, hello: frames.Hello) -> None:
        if hello.magic != frames.MAGIC:
            raise ProtocolError(f"the peer speaks {hello.magic!r}, not {frames.MAGIC}")
        if hello.version != frames.VERSION:
            self.send(Kind.ERROR, frames.Error(0, "protocol", f"this worker speaks version {frames.VERSION}"))
            raise ProtocolError(f"the peer speaks version {hello.version}, this side {frames.VERSION}")
        if self._token and not hmac.compare_digest(self._token.encode(), (hello.token or "").encode()):
            self.send(Kind.ERROR, frames.Error(0, "protocol", "wrong request plane token"))
            raise ProtocolError("the peer has no valid request plane token")
        self._greeted = True
        self.send(Kind.HELLO, frames.Hello())

    def _request(self, request: frames.Request) -> None:
        if not self._greeted:
            raise ProtocolError("a request came before hello")
        if request.stream in self._calls:
            raise ProtocolError(f"stream {request.stream} is already in use")
        route = self._routes.get(request.endpoint)
        if route is None:
            error = Unavailable(f"{request.endpoint} is not served here")
            self.send(Kind.ERROR, frames.Error(request.stream, *to_wire(error)))
            return
        context = Context(request.id, request.metadata, traceparent=request.traceparent)
        self._calls[request.stream] = context
        outlet = LinkOutlet(self, request.stream, route, context, columnar=request.columnar)
        route.start_raw(request.payload, context, outlet)

    def _cancel(self, cancel: frames.Cancel) -> None:
        context = self._calls.get(cancel.stream)
        if context is not None:
            if cancel.kill:
                context.kill()
            else:
                context.stop_generating()

    def _lost(self, error: DynamoException) -> None:
        self.resume()
        for context in tuple(self._calls.values()):
            context.kill()

    def _close_transport(self) -> None:
        self._close()


class LinkOutlet:
    """The sink of one request at the worker: what is pushed here goes out on the link."""

    __slots__ = ("_context", "_link", "_route", "_stream", "columnar", "done")

    def __init__(self, link: ServerLink, stream: int, route: Route, context: Context, *, columnar: bool) -> None:
        self._link = link
        self._stream = stream
        self._route = route
        self._context = context
        self.columnar = columnar
        self.done = False

    def tokens(self, ids: list[int]) -> None:
        if self.done:
            return
        if self.columnar:
            self._link.send_tokens(self._stream, ids)
        else:
            self.item({"token_ids": ids})

    def item(self, value: Any) -> None:
        if not self.done and not self._link.lost:
            self._link.send(Kind.ITEM, frames.Item(self._stream, frames.encode_payload(value)))

    def end(self) -> None:
        if not self.done:
            self._finish(Kind.END, frames.End(self._stream))

    def fail(self, error: DynamoException) -> None:
        if not self.done:
            self._finish(Kind.ERROR, frames.Error(self._stream, *to_wire(error)))

    def _finish(self, kind: Kind, body: Any) -> None:
        self.done = True
        if not self._link.lost:
            self._link.send(kind, body)
        self._link.forget(self._stream)
        self._route.finished(self._context)

    async def writable(self) -> None:
        await self._link.room()


@lru_cache(maxsize=64)
def item_decoder(item_type: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(item_type)


class Call:
    """One open stream at the client's end."""

    __slots__ = ("decoder", "forget", "sink")

    def __init__(self, sink: Sink, decoder: msgspec.msgpack.Decoder[Any]) -> None:
        self.sink = sink
        self.decoder = decoder
        self.forget: Callable[[], None] = lambda: None


class ClientLink(Link):
    """A client's end: many streams on one connection, each told to its sink."""

    def __init__(
        self,
        write: Callable[[bytes], None],
        peer: str,
        *,
        token: str | None = None,
        beat: float,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(write, peer, beat=beat)
        self.draining: set[str] = set()
        self.greeted: asyncio.Future[None] = self._loop.create_future()
        self._close = close
        self._calls: dict[int, Call] = {}
        self._streams = 0
        self._on |= {
            Kind.HELLO: self._hello,
            Kind.DELTAS: self._deltas_in,
            Kind.ITEM: self._item,
            Kind.END: self._end,
            Kind.ERROR: self._error,
            Kind.DRAINING: self._draining,
        }
        self.send(Kind.HELLO, frames.Hello(token=token))

    @property
    def busy(self) -> bool:
        return bool(self._calls)

    def request(self, path: str, request: Any, context: Context, sink: Sink, *, item_type: Any, columnar: bool) -> None:
        if self.lost:
            sink.fail(Disconnected(f"the connection to {self.peer} is gone"))
            return
        if context.is_killed():
            sink.fail(Cancelled("request was cancelled before it was sent"))
            return
        self._streams += 1
        stream = self._streams
        try:
            self.send(
                Kind.REQUEST,
                frames.Request(
                    stream,
                    path,
                    context.id(),
                    frames.encode_payload(request),
                    columnar,
                    context.metadata,
                    context.traceparent,
                ),
            )
        except InvalidArgument as error:
            sink.fail(error)
            return
        call = Call(sink, item_decoder(item_type))
        self._calls[stream] = call
        if context.is_stopped():
            self._cancel(stream, killed=False)
        call.forget = context.on_stop(lambda killed: self._cancel(stream, killed=killed))

    def _cancel(self, stream: int, *, killed: bool) -> None:
        if self.lost or stream not in self._calls:
            return
        self.send(Kind.CANCEL, frames.Cancel(stream, killed))
        if killed:
            # The reader is gone: its cancellation must not wait for the rest of this turn of the loop.
            self.flush()
            self._finish(stream).sink.fail(Cancelled("request was cancelled"))

    def _hello(self, hello: frames.Hello) -> None:
        if hello.magic != frames.MAGIC or hello.version != frames.VERSION:
            raise ProtocolError(f"the worker speaks {hello.magic!r} version {hello.version}")
        if not self.greeted.done():
            self.greeted.set_result(None)

    def _deltas_in(self, deltas: frames.Deltas) -> None:
        calls = self._calls
        for stream, ids in deltas.items():
            call = calls.get(stream)
            if call is not None:
                try:
                    call.sink.tokens(ids)
                except Exception as error:
                    self._broken_sink(stream, error)

    def _item(self, item: frames.Item) -> None:
        call = self._calls.get(item.stream)
        if call is None:
            return
        try:
            call.sink.item(call.decoder.decode(item.payload))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self.send(Kind.CANCEL, frames.Cancel(item.stream))
            self._finish(item.stream).sink.fail(
                ProtocolError(f"the worker sent an item that cannot be understood: {error}")
            )
        except Exception as error:
            self._broken_sink(item.stream, error)

    def _end(self, end: frames.End) -> None:
        if end.stream in self._calls:
            call = self._finish(end.stream)
            try:
                call.sink.end()
            except Exception:
                log.exception("a stream from %s could not be ended", self.peer)

    def _error(self, error: frames.Error) -> None:
        if error.stream in self._calls:
            self._finish(error.stream).sink.fail(from_wire(error.kind, error.message, error.status))
        elif error.stream == 0:
            raise ProtocolError(error.message)

    def _draining(self, path: str) -> None:
        self.draining.add(path)

    def _broken_sink(self, stream: int, error: Exception) -> None:
        """A fault in one stream's own stages ends that stream and no other."""
        log.error("a stream from %s could not be handled: %s", self.peer, error, exc_info=error)
        if stream in self._calls:
            self.send(Kind.CANCEL, frames.Cancel(stream))
            self._finish(stream).sink.fail(ProtocolError(f"internal error: {error}"))

    def _finish(self, stream: int) -> Call:
        call = self._calls.pop(stream)
        call.forget()
        return call

    def _lost(self, error: DynamoException) -> None:
        if not self.greeted.done():
            self.greeted.set_exception(CannotConnect(f"cannot connect to {self.peer}: {error}"))
            self.greeted.exception()
        for stream in tuple(self._calls):
            self._finish(stream).sink.fail(error)

    def _close_transport(self) -> None:
        self._close()
