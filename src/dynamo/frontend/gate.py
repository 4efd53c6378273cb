"""Every request passes here: who may come in, what becomes of failures, and what is written down about it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

from dynamo.frontend import headers
from dynamo.frontend.answers.errors import error_response
from dynamo.frontend.config import FrontendConfig
from dynamo.frontend.connection import Connection
from dynamo.frontend.cors import Cors
from dynamo.frontend.keys import ApiKeys
from dynamo.frontend.measure.exchange import EXCHANGE, PROBES, Exchange, Exchanges, one_line
from dynamo.frontend.measure.metrics import FrontendMetrics
from dynamo.frontend.measure.tracing import Tracing
from dynamo.protocols.errors import (
    DynamoException,
    HttpError,
    ResourceExhausted,
    Unavailable,
    Unknown,
    to_wire,
)

log = logging.getLogger(__name__)

Handler = Callable[[web.Request, str], Awaitable[web.StreamResponse]]
CLIENT_LEFT = 499
BUSY = (Unavailable, ResourceExhausted)
"""Nothing is broken: these are told by the line that every request has, and by no other."""
UNREAD = frozenset((408, 413))
"""Answers given while the rest of a body may still be under way."""


class Gate:
    def __init__(self, config: FrontendConfig, tracing: Tracing | None = None) -> None:
        self.exchanges = Exchanges(FrontendMetrics(config.metrics_prefix))
        self.draining = False
        """New requests are refused, running ones finish."""
        self.running = 0
        self._idle = asyncio.Event()
        self._config = config
        self._keys = ApiKeys(config.api_keys)
        self._open = frozenset(("/health", "/live") if config.protect_metrics else PROBES)
        self._cors = Cors(config.cors_allow_origins)
        self._tracing = tracing

    def guard(self, handler: Handler) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """Every failure of `handler` becomes an answer, with the id under which the log tells more."""

        async def guarded(request: web.Request) -> web.StreamResponse:
            exchange = self._arrived(request)
            status = CLIENT_LEFT
            try:
                response: web.StreamResponse | None = self._cors.preflight(request) if self._cors else None
                if response is None:
                    self._admit(request)
                    response = await handler(request, exchange.request_id)
                status = response.status
                exchange.stream |= not isinstance(response, web.Response)
            except asyncio.CancelledError:
                self._left(request)
                raise
            except ConnectionError:
                # The answer goes nowhere; the library needs one all the same.
                self._left(request)
                return web.Response(status=CLIENT_LEFT)
            except Exception as error:
                response = self._failed(exchange, error)
                status = response.status
            finally:
                self._over(request, exchange, status)
            return response

        return guarded

    async def idle(self) -> None:
        """Wait until no request runs."""
        while self.running:
            self._idle.clear()
            await self._idle.wait()

    async def on_prepare(self, request: web.Request, response: web.StreamResponse) -> None:
        """The last touch on every answer, streams and the library's own included."""
        exchange = request.get(EXCHANGE)
        if "x-request-id" not in response.headers:
            response.headers["x-request-id"] = exchange.request_id if exchange else headers.request_id(request.headers)
        # The library would tell its own version and Python's.
        response.headers["Server"] = "dynamo"
        if self._cors:
            response.headers.update(self._cors.headers(request.headers))
        if self.draining or response.status in UNREAD:
            response.headers["Connection"] = "close"
            response.force_close()

    def _arrived(self, request: web.Request) -> Exchange:
        exchange = self.exchanges.begin(request.method, request.rel_url.raw_path, headers.request_id(request.headers))
        exchange.traceparent = headers.traceparent(request.headers)
        if self._tracing:
            self._tracing.begin(exchange)
        request[EXCHANGE] = exchange
        self.running += 1
        if isinstance(request.protocol, Connection):
            request.protocol.begun()
        return exchange

    def _admit(self, request: web.Request) -> None:
        path = request.path
        if path not in self._open:
            self._keys.check(request.headers)
        if path in PROBES:
            return
        if self.draining:
            raise Unavailable("The service is shutting down.")
        limit = self._config.max_concurrent_requests
        if limit and request[EXCHANGE].endpoint and len(self.exchanges.running) > limit:
            raise ResourceExhausted(f"{limit} requests run already, which is the limit. Please retry shortly.")

    def _left(self, request: web.Request) -> None:
        if request.transport is None and request[EXCHANGE].endpoint:
            self.exchanges.metrics.disconnected.at().value += 1

    def _failed(self, exchange: Exchange, error: Exception) -> web.Response:
        match error:
            case DynamoException():
                known: DynamoException = error
            case web.HTTPRequestEntityTooLarge():
                limit = self._config.body_limit_mb
                why = f"Request body exceeds the limit of {limit} MB set by DYN_HTTP_BODY_LIMIT_MB"
                known = HttpError(413, why)
            case web.RequestPayloadError():
                known = HttpError(400, "the request's body does not follow its headers")
            case web.HTTPException():
                known = HttpError(error.status, error.reason)
            case _:
                log.error("%s %s failed [%s]", exchange.method, exchange.path, exchange.request_id, exc_info=error)
                known = Unknown(f"internal error: {type(error).__name__}")
        exchange.error = known
        status = self._config.overload_status_code if isinstance(known, ResourceExhausted) else None
        return error_response(known, exchange.request_id, exchange.path, status)

    def _over(self, request: web.Request, exchange: Exchange, status: int) -> None:
        if isinstance(request.protocol, Connection):
            request.protocol.ended()
        self.running -= 1
        if not self.running:
            self._idle.set()
        error = exchange.error
        if error is not None and to_wire(error)[2] >= 500 and not isinstance(error, BUSY):
            log.error(
                "%s %s failed (%d): %s [%s]",
                exchange.method, exchange.path, to_wire(error)[2], one_line(error.message), exchange.request_id,
                extra={"x_request_id": exchange.request_id},
            )  # fmt: skip
        self.exchanges.end(exchange, status)
        if self._tracing:
            self._tracing.end(exchange, status)
        exchange.forget()
