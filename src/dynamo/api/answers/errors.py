"""Errors as HTTP clients see them: the one place that maps the tree of errors to statuses and bodies."""

from __future__ import annotations

import math

import msgspec
from aiohttp import web

from dynamo.api.anthropic.answers import AnthropicError
from dynamo.api.ollama.messages import OllamaError
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
ErrorShape = type[ErrorAnswer] | type[AnthropicError] | type[OllamaError]
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


def error_response(
    error: DynamoException,
    request_id: str,
    shape: ErrorShape = ErrorAnswer,
    status: int | None = None,
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
    answer: ErrorAnswer | AnthropicError | OllamaError
    if shape is AnthropicError:
        answer = AnthropicError.of(error, request_id)
    else:
        answer = OllamaError.of(error) if shape is OllamaError else error_answer(error, request_id, status)
    body = msgspec.json.encode(answer)
    return web.Response(body=body, status=status or 500, content_type="application/json", headers=headers)
