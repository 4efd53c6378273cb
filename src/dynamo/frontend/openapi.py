"""The OpenAPI document, built from the very structs that decode the requests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from dynamo.protocols.anthropic import CountTokensRequest, MessagesRequest
from dynamo.protocols.anthropic_answers import AnthropicError, AnthropicMessage, TokenCount
from dynamo.protocols.openai_answers import ChatCompletion, ErrorAnswer, Model, ModelList, TextCompletion
from dynamo.protocols.openai_chat import ChatRequest
from dynamo.protocols.openai_completions import CompletionRequest
from dynamo.protocols.openai_embeddings import EmbeddingList, EmbeddingRequest
from dynamo.protocols.openai_responses import ResponsesRequest
from dynamo.protocols.responses_answers import ResponseObject

_REASONS = {
    400: "The request is wrong; the message names the field.",
    401: "The API key is missing or wrong.",
    404: "There is no such model.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    500: "The engine failed.",
    502: "The worker was lost and no other could take over.",
    503: "No worker is free or ready; try again later.",
    504: "A worker did not answer in time.",
}


class ApiRoute(Struct, kw_only=True, frozen=True):
    method: Literal["get", "post"]
    path: str
    summary: str
    request: Any = None
    """The struct its body is decoded to; None for a route without a body."""
    answer: Any = None
    """The struct of its answer; None where it is an object this document says nothing about."""
    error: Any = ErrorAnswer
    statuses: tuple[int, ...] = ()
    """The errors it can answer with."""
    streams: bool = False
    """Whether the answer can also be a stream of server-sent events."""


def inference_routes() -> tuple[ApiRoute, ...]:
    generation = (400, 401, 404, 413, 415, 500, 502, 503, 504)

    def post(path: str, summary: str, request: Any, answer: Any, **more: Any) -> ApiRoute:
        return ApiRoute(
            method="post", path=path, summary=summary, request=request, answer=answer, statuses=generation, **more
        )

    chat, messages = "/v1/chat/completions", "/v1/messages"
    return (
        post(chat, "Continue a conversation", ChatRequest, ChatCompletion, streams=True),
        post("/v1/completions", "Continue a text", CompletionRequest, TextCompletion, streams=True),
        post("/v1/embeddings", "Embed texts", EmbeddingRequest, EmbeddingList),
        post("/v1/responses", "Answer, as OpenAI's Responses", ResponsesRequest, ResponseObject, streams=True),
        post(
            messages,
            "Continue a conversation, as Anthropic's Messages",
            MessagesRequest,
            AnthropicMessage,
            error=AnthropicError,
            streams=True,
        ),
        post(
            f"{messages}/count_tokens",
            "Count the tokens of a prompt",
            CountTokensRequest,
            TokenCount,
            error=AnthropicError,
        ),
        ApiRoute(method="get", path="/v1/models", summary="List the models", answer=ModelList, statuses=(401,)),
        ApiRoute(method="get", path="/v1/models/{id}", summary="One model", answer=Model, statuses=(401, 404)),
    )


def document(routes: Sequence[ApiRoute], title: str, version: str) -> dict[str, Any]:
    """An OpenAPI 3.1 document of these routes."""
    kinds = dict.fromkeys(
        kind for route in routes for kind in (route.request, route.answer, route.error) if kind is not None
    )
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    schema_of = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method] = _operation(route, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "paths": paths,
        "components": {"schemas": components},
    }


def _operation(route: ApiRoute, schema_of: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    content = {"application/json": {"schema": schema_of.get(route.answer, {"type": "object"})}}
    if route.streams:
        content["text/event-stream"] = {}
    responses: dict[str, Any] = {"200": {"description": "The answer.", "content": content}}
    for status in route.statuses:
        error = {"application/json": {"schema": schema_of[route.error]}}
        responses[str(status)] = {"description": _REASONS.get(status, "An error."), "content": error}
    operation: dict[str, Any] = {"summary": route.summary, "responses": responses}
    if names := re.findall(r"{(\w+)}", route.path):
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if route.request is not None:
        body = {"application/json": {"schema": schema_of[route.request]}}
        operation["requestBody"] = {"required": True, "content": body}
    return operation
