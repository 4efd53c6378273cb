"""Every request passes here: it is admitted or refused, its failure becomes an answer, and its end is recorded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from dynamo.frontend import headers
from dynamo.frontend.answers.errors import error_response
from dynamo.frontend.bodies import IGNORED_FIELDS
from dynamo.frontend.config import FrontendConfig
from dynamo.frontend.connection import Connection
from dynamo.frontend.cors import Cors
from dynamo.frontend.keys import ApiKeys
from dynamo.frontend.measure.exchange import EXCHANGE, Exchange, one_line
from dynamo.frontend.measure.tracing import Tracing
from dynamo.frontend.route import Access, HttpRoute
from dynamo.frontend.state import Frontend
from dynamo.protocols.errors import (
    DynamoException,
    HttpError,
    ResourceExhausted,
    Unavailable,
    Unknown,
    to_wire,
)

log = logging.getLogger(__name__)

Handler = Callable[[web.Request, Exchange], Awaitable[web.StreamResponse]]
CLIENT_LEFT = 499
BUSY = (Unavailable, ResourceExhausted)
"""Nothing is broken: the line that every request gets in the log is enough."""
UNREAD = frozenset((408, 413))
"""Statuses of answers given before the whole body has arrived."""


class Gate:
    def __init__(self, frontend: Frontend, config: FrontendConfig, tracing: Tracing | None = None) -> None:
        self.running = 0
        self._frontend = frontend
        self._exchanges = frontend.exchanges
        self._idle = asyncio.Event()
        self._config = config
        self._keys = ApiKeys(config.api_keys)
        self._cors = Cors(config.cors_allow_origins)
        self._tracing = tracing

    def guard(self, route: HttpRoute[Any], handler: Handler) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """Every failure of `handler` becomes an answer with the request's id, by which to find it in the log."""

        async def guarded(request: web.Request) -> web.StreamResponse:
            exchange = self._arrived(request, route)
            status = CLIENT_LEFT
            try:
                response: web.StreamResponse | None = self._cors.preflight(request) if self._cors else None
                if response is None:
                    self._admit(request, route)
                    response = await handler(request, exchange)
                status = response.status
                exchange.stream |= not isinstance(response, web.Response)
            except asyncio.CancelledError:
                self._client_left(request, exchange)
                raise
            except ConnectionError:
                # The answer goes nowhere, but the library wants one.
                self._client_left(request, exchange)
                return web.Response(status=CLIENT_LEFT)
            except Exception as error:
                response = self._failed(route, exchange, error)
                status = response.status
            finally:
                self._ended(request, exchange, status)
            return response

        return guarded

    async def idle(self) -> None:
        """Wait until no request runs."""
        while self.running:
            self._idle.clear()
            await self._idle.wait()

    async def on_prepare(self, request: web.Request, response: web.StreamResponse) -> None:
        """Headers that every answer has, streams and the library's own answers included."""
        exchange = request.get(EXCHANGE)
        if "x-request-id" not in response.headers:
            response.headers["x-request-id"] = exchange.request_id if exchange else headers.request_id(request.headers)
        if "anthropic-version" in request.headers or request.path.startswith("/v1/messages"):
            response.headers["request-id"] = response.headers["x-request-id"]
        if ignored := request.get(IGNORED_FIELDS):
            response.headers[headers.WARNING] = headers.ignored_fields(ignored)
        # The library would send its own version and Python's.
        response.headers["Server"] = "dynamo"
        if self._cors:
            response.headers.update(self._cors.headers(request.headers))
        if self._frontend.draining or response.status in UNREAD:
            response.headers["Connection"] = "close"
            response.force_close()

    def _arrived(self, request: web.Request, route: HttpRoute[Any]) -> Exchange:
        exchange = self._exchanges.begin(
            request.method,
            request.rel_url.raw_path,
            headers.request_id(request.headers),
            route.endpoint,
            is_probe=route.is_probe,
        )
        exchange.traceparent = headers.traceparent(request.headers)
        if self._tracing:
            self._tracing.begin(exchange)
        request[EXCHANGE] = exchange
        self.running += 1
        if isinstance(request.protocol, Connection):
            request.protocol.begun()
        return exchange

    def _admit(self, request: web.Request, route: HttpRoute[Any]) -> None:
        access = route.access
        if access is Access.KEY or (access is Access.METRICS and self._config.protect_metrics):
            self._keys.check(request.headers)
        if route.is_probe:
            return
        if self._frontend.draining:
            raise Unavailable("The service is shutting down.")
        limit = self._config.max_concurrent_requests
        if limit and route.endpoint and len(self._exchanges.running) > limit:
            raise ResourceExhausted(f"{limit} requests run already, which is the limit. Please retry shortly.")

    def _client_left(self, request: web.Request, exchange: Exchange) -> None:
        if request.transport is None and exchange.endpoint:
            self._exchanges.metrics.disconnected.at().value += 1

    def _failed(self, route: HttpRoute[Any], exchange: Exchange, error: Exception) -> web.Response:
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
        return error_response(known, exchange.request_id, route.error, status)

    def _ended(self, request: web.Request, exchange: Exchange, status: int) -> None:
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
        self._exchanges.end(exchange, status)
        if self._tracing:
            self._tracing.end(exchange, status)
        exchange.forget()
