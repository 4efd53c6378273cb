"""Streams that outlive their connection: what a frontend that dies leaves unread is kept until another one reads it.

A frontend asks for that with a claim. From then on the worker keeps all that the handler produces. When the connection
is lost the handler goes on, and whoever attaches reads everything from the first token. A caller that cancels has left:
then nothing is kept. A stream that has ended is kept for the same time, as its end may not have arrived.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Raw, Struct

from dynamo.protocols.engine import PreprocessedRequest
from dynamo.protocols.errors import Cancelled, DynamoException, EngineShutdown, NotFound
from dynamo.protocols.streams import StreamClaim, StreamFacts
from dynamo.runtime.context import Context
from dynamo.runtime.plane.frames import encode_payload
from dynamo.runtime.stream import Outlet

log = logging.getLogger(__name__)

TOKEN_BYTES = 4


class KeepLimits(Struct, frozen=True):
    seconds: float = 30.0
    """How long a stream waits for a reader; 0 keeps none."""
    bytes_per_owner: int = 16 << 20


class KeptStreams:
    """The kept streams of one route."""

    def __init__(self, limits: KeepLimits) -> None:
        self._limits = limits
        self._streams: dict[str, KeptStream] = {}
        self._sizes: dict[str, int] = {}
        """The bytes of each owner's streams."""

    def __len__(self) -> int:
        return len(self._streams)

    def begin(
        self,
        claim: StreamClaim,
        request: Any,
        context: Context,
        outlet: Outlet,
        ended: Callable[[Context, DynamoException | None], None],
    ) -> KeptStream:
        """The stream that the request's handler is to write; `ended` is called once when it has ended."""
        if earlier := self._streams.get(claim.id):
            # The name is used again. An earlier stream that nobody reads is one that its client has given up.
            earlier.forget(cancel=not earlier.is_read)
        stream = KeptStream(self, claim, _resumed(request), context, outlet, ended)
        self._streams[claim.id] = stream
        self.count(stream, len(claim.facts) + TOKEN_BYTES * len(stream.resumed))
        return stream

    def describe(self, claim: StreamClaim, outlet: Outlet) -> None:
        stream = self._streams.get(claim.id)
        if stream is None:
            outlet.fail(NotFound("this worker has no such stream"))
            return
        outlet.item(StreamFacts(stream.claim.facts, bool(stream.resumed)))
        outlet.end()

    def attach(self, claim: StreamClaim, context: Context, outlet: Outlet) -> None:
        stream = self._streams.get(claim.id)
        if stream is None:
            # As by a worker that has left: the caller asks another one.
            outlet.fail(EngineShutdown("this worker has no such stream any more"))
            return
        log.info("request %s is read by another connection now", context.id())
        stream.attach(context, outlet)

    def count(self, stream: KeptStream, size: int) -> None:
        """The stream takes so much more. Where its owner has too much, his oldest streams are forgotten."""
        owner = stream.claim.owner
        stream.size += size
        total = self._sizes[owner] = self._sizes.get(owner, 0) + size
        if total > self._limits.bytes_per_owner:
            self._make_room(owner)

    def forget(self, stream: KeptStream) -> None:
        if self._streams.get(stream.claim.id) is stream:
            del self._streams[stream.claim.id]
        left = self._sizes.get(stream.claim.owner, 0) - stream.size
        if left > 0:
            self._sizes[stream.claim.owner] = left
        else:
            self._sizes.pop(stream.claim.owner, None)

    def wait(self, expired: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(self._limits.seconds, expired)

    def close(self) -> None:
        for stream in tuple(self._streams.values()):
            stream.forget()

    def _make_room(self, owner: str) -> None:
        """First those that have ended, then those that run: they go on, but end with their connection."""
        owned = [stream for stream in self._streams.values() if stream.claim.owner == owner]
        for stream in sorted(owned, key=lambda stream: not stream.over):
            if self._sizes.get(owner, 0) <= self._limits.bytes_per_owner:
                return
            stream.forget(cancel=not stream.is_read)


class KeptStream:
    """The outlet that a handler writes, whichever connection reads it, and all that was written."""

    __slots__ = (
        "_context", "_ended", "_entries", "_error", "_forget_caller", "_kept", "_outlet", "_streams", "_timer", "claim",
        "columnar", "context", "over", "resumed", "size",
    )  # fmt: skip

    def __init__(
        self,
        streams: KeptStreams,
        claim: StreamClaim,
        resumed: Sequence[int],
        context: Context,
        outlet: Outlet,
        ended: Callable[[Context, DynamoException | None], None],
    ) -> None:
        self.claim = claim
        self.resumed = resumed
        """The tokens that earlier workers generated."""
        self.context = context.received()
        """The handler's: it outlives that of the connection."""
        self.columnar = outlet.columnar
        self.over = False
        self.size = 0
        self._streams = streams
        self._ended = ended
        self._kept = True
        self._entries: list[array[int] | Raw] = []
        self._error: DynamoException | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._outlet: Outlet | None = None
        self._context: Context | None = None
        self._forget_caller: Callable[[], None] = lambda: None
        self._read_by(context, outlet)

    @property
    def is_read(self) -> bool:
        return self._outlet is not None

    def tokens(self, ids: list[int]) -> None:
        if self._kept:
            entries = self._entries
            if entries and isinstance(last := entries[-1], array):
                last.extend(ids)
            else:
                entries.append(array("I", ids))
            self._streams.count(self, TOKEN_BYTES * len(ids))
        if self._outlet is not None:
            self._outlet.tokens(ids)

    def item(self, value: Any) -> None:
        if self._kept:
            payload = encode_payload(value)
            self._entries.append(payload)
            self._streams.count(self, len(payload))
        if self._outlet is not None:
            self._outlet.item(value)

    def end(self) -> None:
        self._finish(None)

    def fail(self, error: DynamoException) -> None:
        self._finish(error)

    async def writable(self) -> None:
        if self._outlet is not None:
            await self._outlet.writable()

    def attach(self, context: Context, outlet: Outlet) -> None:
        """From now on this connection reads the stream, and first all that was written."""
        before, self._outlet = self._outlet, None
        self._forget_caller()
        if before is not None:
            before.fail(Cancelled("the stream is read by another connection now"))
        if self.resumed:
            outlet.tokens(list(self.resumed))
        for entry in self._entries:
            if isinstance(entry, array):
                outlet.tokens(entry.tolist())
            else:
                outlet.item(entry)
        if self.over:
            _close(outlet, self._error)
            return
        self._stop_waiting()
        self._read_by(context, outlet)

    def forget(self, *, cancel: bool = False) -> None:
        """Keep it no longer; with `cancel`, end it too."""
        if self._kept:
            self._kept = False
            self._entries.clear()
            self._streams.forget(self)
        self._stop_waiting()
        if cancel and not self.over:
            self.context.stop_for_caller(kill=True)

    def _read_by(self, context: Context, outlet: Outlet) -> None:
        self._outlet, self._context = outlet, context
        self._forget_caller = context.on_stop(self._stopped)
        context.when_caller_lost = self._lost

    def _stopped(self, killed: bool) -> None:
        """The caller cancels. One that kills has left."""
        if killed:
            self.forget()
        self.context.stop_for_caller(kill=killed)

    def _lost(self, context: Context) -> None:
        if context is not self._context or self.over:
            return
        if not self._kept:
            self.context.stop_for_caller(kill=True)
            return
        outlet, self._outlet = self._outlet, None
        if outlet is not None:
            outlet.end()
        log.info("request %s has lost its reader and waits for another", context.id())
        self._timer = self._streams.wait(self._expired)

    def _expired(self) -> None:
        if not self.over:
            log.info("request %s is ended: nobody has come to read it", self.context.id())
        self.forget(cancel=True)

    def _stop_waiting(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _finish(self, error: DynamoException | None) -> None:
        if self.over:
            return
        self.over, self._error = True, error
        self._forget_caller()
        outlet, self._outlet = self._outlet, None
        if outlet is not None:
            _close(outlet, error)
        self._stop_waiting()
        if error is not None and error.migratable:
            # Whoever reads it next must have it continued by another worker.
            self.forget()
        elif self._kept:
            self._timer = self._streams.wait(self._expired)
        self._ended(self.context, error)


def _close(outlet: Outlet, error: DynamoException | None) -> None:
    if error is None:
        outlet.end()
    else:
        outlet.fail(error)


def _resumed(request: Any) -> Sequence[int]:
    """The part of the prompt that is the answer's own beginning."""
    if not isinstance(request, PreprocessedRequest) or not request.resumed_tokens:
        return ()
    return request.token_ids[-request.resumed_tokens :]
