"""All routes of the server, in one table."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from dynamo.frontend.answers.errors import error_response
from dynamo.frontend.call import Body, HttpCall
from dynamo.frontend.route import Access, Handler, HttpRoute
from dynamo.frontend.routes import admin, chat, completions, decisions, docs, embeddings, listing, messages, responses
from dynamo.frontend.state import Frontend
from dynamo.protocols.anthropic import CountTokensRequest, MessagesRequest
from dynamo.protocols.anthropic_answers import AnthropicError, AnthropicMessage, TokenCount
from dynamo.protocols.errors import HttpError
from dynamo.protocols.openai_answers import ChatCompletion, Model, ModelList, TextCompletion
from dynamo.protocols.openai_chat import ChatRequest
from dynamo.protocols.openai_completions import CompletionRequest
from dynamo.protocols.openai_embeddings import EmbeddingList, EmbeddingRequest
from dynamo.protocols.openai_responses import ResponsesRequest
from dynamo.protocols.responses_answers import ResponseObject

_INFERENCE_ERRORS = (400, 401, 404, 413, 415, 500, 502, 503, 504)


def _inference(
    path: str, handler: Handler[Body], body: type[Body], answer: type, endpoint: str | None, summary: str, **more: Any
) -> HttpRoute[Body]:
    statuses = _INFERENCE_ERRORS
    return HttpRoute(
        "POST", path, handler, body, endpoint=endpoint, summary=summary, answer=answer, statuses=statuses, **more
    )


ROUTES: tuple[HttpRoute[Any], ...] = (
    _inference(
        "/v1/chat/completions", chat.chat, ChatRequest, ChatCompletion, "chat_completions",
        "Continue a conversation", streams=True,
    ),
    _inference(
        "/v1/completions", completions.completions, CompletionRequest, TextCompletion, "completions",
        "Continue a text", streams=True,
    ),
    _inference(
        "/v1/embeddings", embeddings.embeddings, EmbeddingRequest, EmbeddingList, "embeddings", "Embed texts",
    ),
    _inference(
        "/v1/responses", responses.responses, ResponsesRequest, ResponseObject, "responses",
        "Answer, as OpenAI's Responses", streams=True,
    ),
    _inference(
        "/v1/messages", messages.messages, MessagesRequest, AnthropicMessage, "anthropic_messages",
        "Continue a conversation, as Anthropic's Messages", streams=True, error=AnthropicError,
    ),
    _inference(
        "/v1/messages/count_tokens", messages.count_tokens, CountTokensRequest, TokenCount, None,
        "Count the tokens of a prompt", error=AnthropicError,
    ),
    HttpRoute("GET", "/v1/models", listing.list_models, summary="List the models", answer=ModelList, statuses=(401,)),
    HttpRoute(
        "GET", "/v1/models/{id:.+}", listing.show_model, summary="One model", answer=Model, statuses=(401, 404)
    ),
    HttpRoute("GET", "/health", listing.health, access=Access.PROBE, summary="Whether requests are taken"),
    HttpRoute("GET", "/live", listing.live, access=Access.PROBE, summary="Whether the process runs"),
    HttpRoute("GET", "/metrics", listing.metrics, access=Access.METRICS),
    HttpRoute("GET", "/openapi.json", docs.openapi_json),
    HttpRoute("GET", "/docs", docs.docs),
    HttpRoute(
        "POST", "/clear_kv_blocks", admin.clear_kv_blocks,
        summary="Empty the caches of all workers", answer=admin.ClearedBlocks, statuses=(401, 500),
    ),
    HttpRoute(
        "GET", "/router/decisions", decisions.decisions,
        summary="The last choices of workers with their reasons (limit=, candidates=, model=)", statuses=(400, 401),
    ),
    HttpRoute(
        "GET", "/busy_threshold", admin.get_thresholds,
        summary="From which load on workers are busy", answer=admin.ThresholdList, statuses=(401,),
    ),
    HttpRoute(
        "POST", "/busy_threshold", admin.set_thresholds, admin.ThresholdRequest,
        summary="Say from which load on a model's workers are busy", answer=admin.ModelThresholds,
        statuses=(400, 401, 404, 413, 415, 503),
    ),
)  # fmt: skip


async def not_found(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
    raise HttpError(404, f"Route not found: {call.request.method} {call.request.path}")


UNKNOWN_PATHS = (
    HttpRoute("*", r"/v1/messages{rest:[\s\S]*}", not_found, error=AnthropicError),
    HttpRoute("*", r"/{rest:[\s\S]*}", not_found),
)
"""Matched after all others, and with all methods."""


def wrong_method(routes: list[HttpRoute[Any]]) -> HttpRoute[None]:
    """The route for all methods that a path does not have."""
    first, allowed = routes[0], ", ".join(sorted(route.method for route in routes))

    async def refuse(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
        error = HttpError(405, f"{call.request.method} is not allowed here; use {allowed}")
        answer = error_response(error, call.request_id, first.error)
        answer.headers["Allow"] = allowed
        return answer

    return HttpRoute("*", first.path, refuse, access=first.access, error=first.error)
