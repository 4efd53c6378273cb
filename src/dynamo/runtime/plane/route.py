"""What a worker serves under one path: the handler, and its running requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import msgspec

from dynamo.protocols.engine import PreprocessedRequest
from dynamo.protocols.errors import (
    Cancelled,
    DynamoException,
    EngineShutdown,
    InvalidArgument,
    NotFound,
    from_exception,
)
from dynamo.protocols.streams import StreamClaim
from dynamo.runtime.context import Context
from dynamo.runtime.logging import TOLD
from dynamo.runtime.plane.admission import RequestAdmission, RequestLimit
from dynamo.runtime.plane.frames import Unencodable, unpack
from dynamo.runtime.plane.kept import KeepLimits, KeptStreams
from dynamo.runtime.status.counts import EndpointCounts
from dynamo.runtime.stream import Handler, Outlet

log = logging.getLogger(__name__)


class Route:
    """Accepts requests until `close`; then `drain` waits for those that run and `kill` ends them."""

    def __init__(
        self,
        path: str,
        handler: Handler,
        request_type: Any = Any,
        counts: EndpointCounts | None = None,
        limit: RequestLimit | None = None,
        keep: KeepLimits | None = None,
    ) -> None:
        """With `keep`, streams outlive their connections where their requests claim it."""
        self.path = path
        self.kept = KeptStreams(keep) if keep and keep.seconds else None
        self._admission = RequestAdmission(limit) if limit else None
        self.counts = counts
        """None in a process that reports no status."""
        if counts is not None:
            counts.admission = self._admission
        self.request_type = request_type
        self.open = True
        self.on_close: list[Callable[[], None]] = []
        self._decoder = msgspec.msgpack.Decoder(request_type)
        self._handler = handler
        self._active: dict[Context, tuple[Outlet, float]] = {}
        """The outlet of each running request and, if requests are counted, when it began."""
        self._idle: asyncio.Future[None] | None = None

    @property
    def active(self) -> int:
        return len(self._active)

    def stream_rows(self) -> Iterator[dict[str, Any]]:
        """The running requests, for people; the oldest first."""
        now = perf_counter()
        for context, (_, began) in tuple(self._active.items()):
            row: dict[str, Any] = {"request": context.id(), "endpoint": self.path, "stopped": context.is_stopped()}
            if began:
                row["seconds"] = round(now - began, 3)
            yield row

    def start(self, request: Any, context: Context, outlet: Outlet, tokens: bytes | None = None) -> None:
        """With `tokens`, the prompt packed separately, the request has arrived as bytes."""
        claim = context.claim
        if claim is not None and claim.act != "begin":
            self._continue(claim, context, outlet)
            return
        size = 0
        if tokens is not None:
            size = len(request) + len(tokens)
            try:
                request = self._decoded(request, tokens)
            except (ValueError, RecursionError) as error:
                if self.counts is not None:
                    self.counts.arrived(size)
                    self.counts.error("deserialization")
                outlet.fail(InvalidArgument(f"request does not fit {self.path}: {error}"))
                return
        if claim is not None and self.kept is not None and self.open:
            outlet = self.kept.begin(claim, request, context, outlet, self.finished)
            context = outlet.context
        if self.counts is None:
            self._active[context] = outlet, 0.0
        else:
            self._active[context] = outlet, perf_counter()
            self.counts.arrived(size)
            self.counts.begun()
        if not self.open:
            outlet.fail(EngineShutdown("this worker is leaving and takes no new requests"))
            return
        if self._admission is None:
            self._handle(request, context, outlet)
        else:
            self._admission.admit(context, outlet, lambda: self._handle(request, context, outlet))

    def _continue(self, claim: StreamClaim, context: Context, outlet: Outlet) -> None:
        """Another connection asks for a stream, which is open already and takes no place of a new request."""
        if self.kept is None:
            outlet.fail(NotFound("this worker keeps no streams"))
        elif claim.act == "describe":
            self.kept.describe(claim, outlet)
        else:
            self.kept.attach(claim, context, outlet)

    def _decoded(self, payload: msgspec.Raw, tokens: bytes) -> Any:
        request = self._decoder.decode(payload)
        if tokens:
            give_tokens(request, tokens)
        return request

    def _handle(self, request: Any, context: Context, outlet: Outlet) -> None:
        try:
            self._handler(request, context, outlet)
        except (Exception, SystemExit) as error:
            log_failure(context, error)
            outlet.fail(from_exception(error))

    def finished(self, context: Context, error: DynamoException | None = None) -> None:
        """Called once by the outlet when the stream has ended, in whatever way."""
        _, began = self._active.pop(context, (None, 0.0))
        if began and self.counts is not None:
            failed = error is not None and not isinstance(error, Cancelled)
            self.counts.ended(perf_counter() - began, failed=failed, cancelled=context.is_stopped())
        if self._admission is not None:
            self._admission.ended(context)
        if not self._active and self._idle and not self._idle.done():
            self._idle.set_result(None)

    def close(self) -> None:
        self.open = False
        for callback in self.on_close:
            callback()
        self.on_close.clear()

    async def drain(self, limit: float) -> None:
        """Wait up to `limit` seconds until the running requests are finished."""
        if not self._active:
            return
        log.info("leaving: waiting up to %g s for %d running requests", limit, self.active)
        self._idle = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(limit):
                await self._idle
        except TimeoutError:
            log.warning("%d requests did not finish within %g s and are ended now", self.active, limit)

    def kill(self) -> None:
        if self.kept is not None:
            self.kept.close()
        for context, (outlet, _) in tuple(self._active.items()):
            # Before the context is killed: a handler that then ends normally would make a partial answer look complete.
            try:
                outlet.fail(EngineShutdown("this worker left before the answer was complete"))
            except Exception:
                log.exception("a stream of %s could not be failed", self.path)
            context.kill()


def give_tokens(request: Any, tokens: bytes) -> None:
    """Put the packed prompt back into the request: as an array for our own engines, as a list for user handlers."""
    if isinstance(request, PreprocessedRequest):
        request.token_ids = unpack(tokens)
    elif isinstance(request, dict):
        request["token_ids"] = unpack(tokens).tolist()
    else:
        raise ValueError("requests with a prompt are not accepted")


def log_failure(context: Context, error: BaseException) -> None:
    """Log a handler's own failure with its traceback; a request that it rejected deliberately is not an error here.

    A refusal is an exception of our tree. Any other exception, and an item that cannot be encoded, is a fault of the
    handler, even where the caller is answered as for a bad request.
    """
    if isinstance(error, DynamoException) and not isinstance(error, Unencodable):
        log.debug("request %s was refused: %s", context.id(), error)
    else:
        log.error(
            "the handler of request %s raised %s: %s", context.id(), type(error).__name__, error,
            exc_info=error, extra={TOLD: True},
        )  # fmt: skip
