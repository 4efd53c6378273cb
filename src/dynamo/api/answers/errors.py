"""Errors as HTTP clients see them: the one place that maps the tree of errors to statuses and bodies."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
from aiohttp import web
from msgspec import Struct

from dynamo.protocols.answers import ErrorAnswer, ErrorDetail
from dynamo.protocols.errors import (
    DynamoException,
    HttpError,
    InvalidArgument,
    ModelNotFound,
    NotFound,
    ResourceExhausted,
)

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "request_timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    529: "overloaded_error",
}
RETRY_AFTER = frozenset((429, 503, 529))


def error_answer(error: DynamoException, request_id: str, status: int | None = None) -> ErrorAnswer:
    status, message = status or error.status, error.public_message
    if status >= 500 and not isinstance(error, HttpError) and status != 503:
        message = f"{message} (request id {request_id})"
    fallback = "invalid_request_error" if 400 <= status < 500 else "internal_server_error"
    return ErrorAnswer(
        error=ErrorDetail(
            message=message,
            type=fallback if isinstance(error, NotFound) else _TYPES.get(status, fallback),
            param="model" if isinstance(error, ModelNotFound) else getattr(error, "param", None),
            code=_code(error),
        )
    )


def _code(error: DynamoException) -> str | None:
    if isinstance(error, HttpError):
        return None
    return getattr(error, "code", None) if isinstance(error, InvalidArgument) else error.kind


class Dialect(Struct, frozen=True):
    """How one API writes its errors, and the headers by which its clients are known."""

    error: type[Struct]
    """The struct of its errors."""
    error_of: Callable[[DynamoException, str, int], Struct]
    """Makes an error of the API, given the request's id and the status of the answer."""
    request_id: str | None = None
    """The header in which its clients look for the request's id, beside `x-request-id`."""
    client: str = ""
    """A header that its clients send: by it they are known on other routes too."""

    def is_of(self, request: web.Request) -> bool:
        """Whether a client of the API sent this."""
        return self.client in request.headers


OPENAI = Dialect(ErrorAnswer, error_answer)


def error_response(
    error: DynamoException, request_id: str, dialect: Dialect = OPENAI, status: int | None = None
) -> web.Response:
    """`status` replaces the error's own."""
    status = status or error.status
    headers = {"x-request-id": request_id}
    if status in RETRY_AFTER or isinstance(error, ResourceExhausted):
        seconds = getattr(error, "retry_after", 1.0)
        headers["Retry-After"] = str(max(1, math.ceil(seconds)))
        if status == 429:
            headers["retry-after-ms"] = str(math.ceil(seconds * 1000))
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    body = msgspec.json.encode(dialect.error_of(error, request_id, status))
    return web.Response(body=body, status=status or 500, content_type="application/json", headers=headers)
