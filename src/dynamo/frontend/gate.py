"""Admits or refuses every request, reads its body, turns its failure into an answer and records its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from aiohttp import HttpVersion11, web

from dynamo.api import headers
from dynamo.api.answers.errors import Dialect, error_response
from dynamo.api.route import OWNER, AnyRoute, HttpCall
from dynamo.frontend.admission.cors import Cors
from dynamo.frontend.admission.limits import MeteredRequest
from dynamo.frontend.bodies import ArrivingBodies, BodyReader, no_body
from dynamo.frontend.callers import tokens_reserved
from dynamo.frontend.config import FrontendConfig
from dynamo.frontend.connection import Connection
from dynamo.frontend.measure.request_record import CLIENT_LEFT, RECORD, RequestRecord, one_line
from dynamo.frontend.measure.tracing import Tracing
from dynamo.frontend.state import Frontend
from dynamo.protocols.errors import DynamoException, HttpError, ResourceExhausted, Unavailable, Unknown

log = logging.getLogger(__name__)

BUSY = (Unavailable, ResourceExhausted)
"""Expected under load or before workers join: the one line that every request gets in the log is enough."""
DIALECT = web.RequestKey("dialect", Dialect)
"""Where a request keeps that of its route."""
STRANGERS = frozenset((401, 403))
"""Statuses of answers to clients that may not call the route."""
UNREAD = frozenset((408, 413))
"""Statuses of answers given before the whole body has arrived."""


class Gate:
    def __init__(self, frontend: Frontend, config: FrontendConfig, tracing: Tracing | None = None) -> None:
        self.open_requests = 0
        self._frontend = frontend
        self._requests = frontend.requests
        self._idle = asyncio.Event()
        self._config = config
        self._callers = frontend.callers
        self._cors = Cors(config.cors_allow_origins) if config.cors_allow_origins else None
        self._tracing = tracing
        self._dialects: dict[str, Dialect] = {}
        """Those whose clients are known by a header, by its name."""
        self._arriving = ArrivingBodies(config.arriving_bodies_mb << 20)

    def guard(self, route: AnyRoute) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """Wrap the route's handler: its failures become answers with the request's id, which is also in the log."""
        if route.dialect.client:
            self._dialects[route.dialect.client] = route.dialect
        read = no_body
        if route.body:
            read = BodyReader(route, self._config, self._arriving).read

        async def guarded(request: web.Request) -> web.StreamResponse:
            record = self._arrived(request, route)
            status = CLIENT_LEFT
            metered: MeteredRequest | None = None
            try:
                response: web.StreamResponse | None = self._cors.preflight(request) if self._cors else None
                if response is None:
                    self._admit(request, route, record)
                    if isinstance(request.protocol, Connection):
                        request.protocol.admitted()
                    if "Expect" in request.headers:
                        await _go_on(request)
                    body, raw_body = await read(request)
                    if route.endpoint:
                        # Only now: clients that send only a part of their body must not use up the limit.
                        self._requests.check(self._config.max_concurrent_requests)
                    if route.limited and self._callers.has_limits and (meter := self._callers.meter(request[OWNER])):
                        metered = meter.admit(tokens_reserved(route, body, raw_body))
                    if route.endpoint:
                        self._requests.run(record)
                    response = await route.handler(self._frontend, HttpCall(request, record, body, raw_body))
                status = response.status
                if not isinstance(response, web.Response):
                    record.stream = True
                elif timing := record.server_timing():
                    response.headers["Server-Timing"] = timing
            except asyncio.CancelledError:
                self._client_left(request, record)
                raise
            except ConnectionError:
                # The client is gone, but the library requires a response.
                self._client_left(request, record)
                return web.Response(status=CLIENT_LEFT)
            except Exception as error:
                response = self._failed(route, record, error)
                status = response.status
                broken = request.content.exception() is not None
                if broken or (status in STRANGERS and not request.content.is_eof()):
                    _discard_rest(request, response)
                if broken:
                    # It was raised to the reader of the body, and would be again when the library reads on.
                    request.content.set_exception(None)  # type: ignore[arg-type]
            finally:
                self._answered(request)
                if record.outcome is None:
                    self._ended(record, metered, status)
                else:
                    # A response in the background: it counts until it is complete.
                    record.outcome.add_done_callback(lambda done: self._ended(record, metered, done.result()))
            return response

        return guarded

    async def idle(self) -> None:
        """Wait until no request runs."""
        while self.open_requests:
            self._idle.clear()
            await self._idle.wait()

    async def on_prepare(self, request: web.Request, response: web.StreamResponse) -> None:
        """Headers that every answer has, streams and the library's own answers included."""
        record = request.get(RECORD)
        if "x-request-id" not in response.headers:
            response.headers["x-request-id"] = record.request_id if record else headers.request_id(request.headers)
        for dialect in self._dialects.values():
            if dialect.request_id and (request.get(DIALECT) is dialect or dialect.is_of(request)):
                response.headers[dialect.request_id] = response.headers["x-request-id"]
        if record and (notices := record.notices):
            response.headers[headers.WARNING] = "; ".join(notices)
        # The library would send its own version and Python's.
        response.headers["Server"] = "dynamo"
        if self._cors:
            self._cors.add_headers(request.headers, response.headers)
        if record and record.limit_headers:
            response.headers.update(record.limit_headers())
        if self._frontend.draining or response.status in UNREAD:
            response.headers["Connection"] = "close"
            response.force_close()

    def _arrived(self, request: web.Request, route: AnyRoute) -> RequestRecord:
        record = self._requests.begin(
            request.method,
            request.rel_url.raw_path,
            headers.request_id(request.headers),
            route.endpoint,
            is_probe=route.is_probe,
            embeds=route.embeds,
        )
        record.traceparent = headers.traceparent(request.headers)
        if self._tracing:
            self._tracing.begin(record)
        request[RECORD], request[DIALECT] = record, route.dialect
        self.open_requests += 1
        if isinstance(request.protocol, Connection):
            request.protocol.request_begun()
        return record

    def _admit(self, request: web.Request, route: AnyRoute, record: RequestRecord) -> None:
        record.tenant = self._callers.admit(request, route.access)
        if route.is_probe:
            return
        if self._frontend.draining:
            raise Unavailable("The service is shutting down.")
        if route.endpoint:
            self._requests.check(self._config.max_concurrent_requests)
        if route.limited and self._callers.has_limits and (meter := self._callers.meter(request[OWNER])):
            # Its headers are in every answer; a request that is over a limit is refused before its body is read.
            record.limit_headers = meter.headers
            meter.check()

    def _client_left(self, request: web.Request, record: RequestRecord) -> None:
        if request.transport is None and record.endpoint:
            self._requests.metrics.disconnected.at().value += 1

    def _failed(self, route: AnyRoute, record: RequestRecord, error: Exception) -> web.Response:
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
                log.error("%s %s failed [%s]", record.method, record.path, record.request_id, exc_info=error)
                known = Unknown(f"internal error: {type(error).__name__}")
        record.failed(known)
        status = self._config.overload_status_code if isinstance(known, ResourceExhausted) else None
        return error_response(known, record.request_id, route.dialect, status)

    def _answered(self, request: web.Request) -> None:
        if isinstance(request.protocol, Connection):
            request.protocol.request_ended()
        self.open_requests -= 1
        if not self.open_requests:
            self._idle.set()

    def _ended(self, record: RequestRecord, metered: MeteredRequest | None, status: int) -> None:
        if metered:
            metered.end(record.input_tokens + record.output_tokens)
        error = record.error
        if error is not None and error.status >= 500 and not isinstance(error, BUSY):
            log.error(
                "%s %s failed (%d): %s [%s]",
                record.method, record.path, error.status, one_line(error.message), record.request_id,
                extra={"x_request_id": record.request_id},
            )  # fmt: skip
        self._requests.end(record, status)
        if self._tracing:
            self._tracing.end(record, status)
        record.forget()


async def _go_on(request: web.Request) -> None:
    """Tell a client that waits for it to send the body."""
    if request.version < HttpVersion11:
        return
    if request.headers["Expect"].lower() != "100-continue":
        raise HttpError(417, "Only 100-continue can be expected")
    if not request.content.is_eof():
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # Not a part of the answer.
        request.writer.output_size = 0


def _discard_rest(request: web.Request, response: web.Response) -> None:
    response.force_close()
    if isinstance(request.protocol, Connection):
        request.protocol.discard()
