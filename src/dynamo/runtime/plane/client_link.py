"""A client's end of a connection: many streams, each pushed into its sink."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from dynamo.protocols.errors import (
    Cancelled,
    CannotConnect,
    Disconnected,
    DynamoException,
    EngineShutdown,
    InvalidArgument,
    ProtocolError,
    from_wire,
)
from dynamo.runtime.context import Context
from dynamo.runtime.plane import frames, handshake
from dynamo.runtime.plane.base import CancelStream, nothing_to_cancel
from dynamo.runtime.plane.frames import Kind
from dynamo.runtime.plane.link import Link
from dynamo.runtime.stream import Sink

log = logging.getLogger(__name__)


@lru_cache(maxsize=64)
def item_decoder(item_type: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(item_type)


class Call:
    """One open stream at the client's end."""

    __slots__ = ("decoder", "forget", "path", "sink")

    def __init__(self, path: str, sink: Sink, decoder: msgspec.msgpack.Decoder[Any]) -> None:
        self.path = path
        self.sink = sink
        self.decoder = decoder
        self.forget: Callable[[], None] = lambda: None


class ClientLink(Link):
    def __init__(
        self,
        write: Callable[[bytes], None],
        peer: str,
        *,
        token: str | None = None,
        beat: float,
        patience: int = 4,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(write, peer, beat=beat, close=close, patience=patience)
        self.draining: set[str] = set()
        self.greeted: asyncio.Future[None] = self._loop.create_future()
        self._calls: dict[int, Call]
        self._streams = 0
        self._on |= {
            Kind.HELLO: self._hello,
            Kind.DELTAS: self._deltas_in,
            Kind.ITEM: self._item,
            Kind.END: self._end,
            Kind.ERROR: self._error,
            Kind.DRAINING: self._draining,
            Kind.PROOF: self._proof,
        }
        self._token = token
        self._nonces = (handshake.nonce() if token else b"", b"")
        """Ours and the worker's."""
        self.send(Kind.HELLO, frames.Hello(nonce=self._nonces[0]))

    def request(
        self, path: str, request: Any, context: Context, sink: Sink, *, item_type: Any, columnar: bool
    ) -> CancelStream:
        if self.lost:
            sink.fail(Disconnected(f"the connection to {self.peer} is gone"))
            return nothing_to_cancel
        if context.is_killed():
            sink.fail(Cancelled("request was cancelled before it was sent"))
            return nothing_to_cancel
        self._streams += 1
        stream = self._streams
        try:
            payload, tokens = frames.encode_request(request)
            self.send(
                Kind.REQUEST,
                frames.Request(
                    stream,
                    path,
                    context.id(),
                    payload,
                    columnar,
                    context.metadata,
                    context.traceparent,
                    tokens,
                    context.claim,
                ),
            )
        except InvalidArgument as error:
            sink.fail(error)
            return nothing_to_cancel
        call = Call(path, sink, item_decoder(item_type))
        self._calls[stream] = call

        def cancel(killed: bool) -> None:
            self._cancel(stream, killed=killed)

        call.forget = context.on_stop(cancel)
        return cancel

    def _cancel(self, stream: int, *, killed: bool) -> None:
        if self.lost or stream not in self._calls:
            return
        self.send(Kind.CANCEL, frames.Cancel(stream, killed))
        if killed:
            # The reader is gone: send the cancellation now, not at the end of this turn of the loop.
            self.flush()
            self._fail(stream, Cancelled("request was cancelled"))

    def _hello(self, hello: frames.Hello) -> None:
        if hello.magic != frames.MAGIC or hello.version != frames.VERSION:
            raise ProtocolError(f"the worker speaks {hello.magic!r} version {hello.version}")
        if self._token is None:
            self._welcome()
            return
        if len(hello.nonce) != handshake.NONCE_BYTES:
            raise ProtocolError("the worker has no plane token; DYN_PLANE_TOKEN must be set on all")
        self._nonces = (self._nonces[0], hello.nonce)
        self.send(Kind.PROOF, handshake.proof(self._token, "client", *self._nonces))

    def _proof(self, sent: bytes) -> None:
        if self._token is None or not handshake.is_proof(sent, self._token, "worker", *self._nonces):
            raise ProtocolError("the worker has another plane token")
        self._welcome()

    def _welcome(self) -> None:
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
            self._fail(item.stream, ProtocolError(f"the worker sent an item that cannot be understood: {error}"))
        except Exception as error:
            self._broken_sink(item.stream, error)

    def _end(self, end: frames.End) -> None:
        if end.stream in self._calls:
            sink = self._finish(end.stream).sink
            try:
                sink.end()
            except Exception:
                log.exception("a stream from %s could not be ended", self.peer)

    def _error(self, error: frames.Error) -> None:
        if error.stream in self._calls:
            self._fail(error.stream, from_wire(error.kind, error.message, error.status))
        elif error.stream == 0:
            raise ProtocolError(error.message)

    def _draining(self, path: str) -> None:
        self.draining.add(path)

    def _broken_sink(self, stream: int, error: Exception) -> None:
        """An exception in the sink of one stream ends that stream and no other."""
        log.error("a stream from %s could not be handled: %s", self.peer, error, exc_info=error)
        if stream in self._calls:
            self.send(Kind.CANCEL, frames.Cancel(stream))
            self._fail(stream, ProtocolError(f"internal error: {error}"))

    def _fail(self, stream: int, error: DynamoException) -> None:
        """Fail one stream; an exception of its reader does not affect the others."""
        sink = self._finish(stream).sink
        try:
            sink.fail(error)
        except Exception:
            log.exception("a stream from %s could not be failed", self.peer)

    def _finish(self, stream: int) -> Call:
        call = self._calls.pop(stream)
        call.forget()
        return call

    def _lost(self, error: DynamoException) -> None:
        if not self.greeted.done():
            self.greeted.set_exception(CannotConnect(f"cannot connect to {self.peer}: {error}"))
            self.greeted.exception()
        for stream, call in tuple(self._calls.items()):
            # A worker that left after it announced its draining may not have read the latest requests.
            left = call.path in self.draining
            self._fail(stream, EngineShutdown(f"the worker left: {error}") if left else error)
