"""A worker's end of a connection: requests come in, their handlers' streams go out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from dynamo.protocols.errors import Disconnected, DynamoException, EngineShutdown, ProtocolError, to_wire
from dynamo.runtime.context import Context
from dynamo.runtime.plane import frames, handshake
from dynamo.runtime.plane.frames import Kind
from dynamo.runtime.plane.handshake import PendingHandshakes
from dynamo.runtime.plane.link import Link
from dynamo.runtime.plane.route import Route


class ServerLink(Link):
    def __init__(
        self,
        write: Callable[[bytes], None],
        peer: str,
        routes: Mapping[str, Route],
        *,
        token: str | None = None,
        handshakes: PendingHandshakes | None = None,
        beat: float,
        patience: int = 4,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(write, peer, beat=beat, close=close, patience=patience)
        self._routes = routes
        self._token = token
        self._handshakes = handshakes or PendingHandshakes()
        self._greeted = False
        self._decoder.limit = frames.MAX_GREETING
        self._nonces: tuple[bytes, bytes] | None = None
        """The client's and ours, once both are known."""
        self._handshakes.add(self, self._give_up)
        self._calls: dict[int, Context]
        self._resumed: asyncio.Future[None] | None = None
        self._on |= {
            Kind.HELLO: self._hello,
            Kind.PROOF: self._proof,
            Kind.REQUEST: self._request,
            Kind.CANCEL: self._cancel,
        }

    def send_draining(self, path: str) -> None:
        if not self.lost:
            self.send(Kind.DRAINING, path)

    def pause(self) -> None:
        if self._resumed is None:
            self._resumed = self._loop.create_future()

    def resume(self) -> None:
        if self._resumed is not None:
            self._resumed.set_result(None)
            self._resumed = None

    async def writable(self) -> None:
        if self._resumed is not None:
            await self._resumed

    def forget(self, stream: int) -> None:
        self._calls.pop(stream, None)

    def _hello(self, hello: frames.Hello) -> None:
        if hello.magic != frames.MAGIC:
            raise ProtocolError(f"the peer speaks {hello.magic!r}, not {frames.MAGIC}")
        if hello.version != frames.VERSION:
            self.send(Kind.ERROR, frames.Error(0, "protocol", f"this worker speaks version {frames.VERSION}"))
            raise ProtocolError(f"the peer speaks version {hello.version}, this side {frames.VERSION}")
        if self._greeted or self._nonces:
            raise ProtocolError("the peer sent hello twice")
        if self._token is None:
            self.send(Kind.HELLO, frames.Hello())
            self._welcome()
            return
        if len(hello.nonce) != handshake.NONCE_BYTES:
            self.send(Kind.ERROR, frames.Error(0, "protocol", "this worker requires the plane token: DYN_PLANE_TOKEN"))
            raise ProtocolError("the peer has no plane token")
        self._nonces = (hello.nonce, handshake.nonce())
        self.send(Kind.HELLO, frames.Hello(nonce=self._nonces[1]))

    def _proof(self, sent: bytes) -> None:
        if self._token is None or self._nonces is None or self._greeted:
            raise ProtocolError("the peer sent a proof out of turn")
        if not handshake.is_proof(sent, self._token, "client", *self._nonces):
            self.send(
                Kind.ERROR, frames.Error(0, "protocol", "wrong plane token; DYN_PLANE_TOKEN must be equal on all")
            )
            raise ProtocolError("the peer has another plane token")
        self.send(Kind.PROOF, handshake.proof(self._token, "worker", *self._nonces))
        self._welcome()

    def _welcome(self) -> None:
        self._greeted = True
        self._decoder.limit = frames.MAX_FRAME
        self._handshakes.remove(self)

    def _give_up(self, why: str) -> None:
        self._handshakes.rejected(self.peer, why)
        self.lose(Disconnected(f"connection closed: {why}"))

    def _report(self, error: ProtocolError) -> None:
        if self._greeted:
            super()._report(error)
        else:
            self._handshakes.rejected(self.peer, error)

    def _request(self, request: frames.Request) -> None:
        if not self._greeted:
            raise ProtocolError("a request came before the peer has introduced itself")
        if request.stream in self._calls:
            raise ProtocolError(f"stream {request.stream} is already in use")
        route = self._routes.get(request.endpoint)
        if route is None:
            # A worker that had this address before served it, and has left.
            error = EngineShutdown(f"{request.endpoint} is not served here")
            self.send(Kind.ERROR, frames.Error(request.stream, *to_wire(error)))
            return
        context = Context(request.id, request.metadata, traceparent=request.traceparent)
        context.claim = request.claim
        if request.columnar and route.counts is not None:
            self._delta_bytes = route.counts.response_bytes
        self._calls[request.stream] = context
        outlet = LinkOutlet(self, request.stream, route, context, columnar=request.columnar)
        route.start(request.payload, context, outlet, request.tokens)

    def _cancel(self, cancel: frames.Cancel) -> None:
        context = self._calls.get(cancel.stream)
        if context is not None:
            context.stop_for_caller(kill=cancel.kill)

    def _lost(self, error: DynamoException) -> None:
        self._handshakes.remove(self)
        self.resume()
        for context in tuple(self._calls.values()):
            context.lose_caller()


class LinkOutlet:
    """The sink of one request at the worker: what is pushed here goes out on the link."""

    __slots__ = ("_begun", "_context", "_link", "_route", "_stream", "columnar", "done")

    def __init__(self, link: ServerLink, stream: int, route: Route, context: Context, *, columnar: bool) -> None:
        self._link = link
        self._stream = stream
        self._route = route
        self._context = context
        self._begun = False
        self.columnar = columnar
        self.done = False

    def tokens(self, ids: list[int]) -> None:
        if self.done:
            return
        if self.columnar:
            if self._begun:
                self._link.send_tokens(self._stream, ids)
            else:
                self._begun = True
                self._link.send_first_tokens(self._stream, ids)
        else:
            self.item({"token_ids": ids})

    def item(self, value: Any) -> None:
        if not self.done and not self._link.lost:
            payload = frames.encode_payload(value)
            self._link.send(Kind.ITEM, frames.Item(self._stream, payload))
            if self._route.counts is not None:
                self._route.counts.response_bytes.value += len(payload)

    def end(self) -> None:
        if not self.done:
            self._finish(Kind.END, frames.End(self._stream))

    def fail(self, error: DynamoException) -> None:
        if not self.done:
            self._finish(Kind.ERROR, frames.Error(self._stream, *to_wire(error)), error)

    def _finish(self, kind: Kind, body: Any, error: DynamoException | None = None) -> None:
        self.done = True
        if not self._link.lost:
            self._link.send(kind, body)
        self._link.forget(self._stream)
        self._route.finished(self._context, error)

    async def writable(self) -> None:
        await self._link.writable()
