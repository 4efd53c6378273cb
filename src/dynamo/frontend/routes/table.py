"""All routes of the server. Whatever depends on the route of a request reads it here."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from dynamo.frontend.answers.errors import error_response
from dynamo.frontend.call import HttpCall
from dynamo.frontend.route import Access, HttpRoute
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

ROUTES: tuple[HttpRoute[Any], ...] = (
    HttpRoute(
        method="POST",
        path="/v1/chat/completions",
        handler=chat.chat,
        body=ChatRequest,
        endpoint="chat_completions",
        summary="Continue a conversation",
        answer=ChatCompletion,
        statuses=_INFERENCE_ERRORS,
        streams=True,
    ),
    HttpRoute(
        method="POST",
        path="/v1/completions",
        handler=completions.completions,
        body=CompletionRequest,
        endpoint="completions",
        summary="Continue a text",
        answer=TextCompletion,
        statuses=_INFERENCE_ERRORS,
        streams=True,
    ),
    HttpRoute(
        method="POST",
        path="/v1/embeddings",
        handler=embeddings.embeddings,
        body=EmbeddingRequest,
        endpoint="embeddings",
        summary="Embed texts",
        answer=EmbeddingList,
        statuses=_INFERENCE_ERRORS,
    ),
    HttpRoute(
        method="POST",
        path="/v1/responses",
        handler=responses.responses,
        body=ResponsesRequest,
        endpoint="responses",
        summary="Answer, as OpenAI's Responses",
        answer=ResponseObject,
        statuses=_INFERENCE_ERRORS,
        streams=True,
    ),
    HttpRoute(
        method="POST",
        path="/v1/messages",
        handler=messages.messages,
        body=MessagesRequest,
        endpoint="anthropic_messages",
        error=AnthropicError,
        summary="Continue a conversation, as Anthropic's Messages",
        answer=AnthropicMessage,
        statuses=_INFERENCE_ERRORS,
        streams=True,
    ),
    HttpRoute(
        method="POST",
        path="/v1/messages/count_tokens",
        handler=messages.count_tokens,
        body=CountTokensRequest,
        error=AnthropicError,
        summary="Count the tokens of a prompt",
        answer=TokenCount,
        statuses=_INFERENCE_ERRORS,
    ),
    HttpRoute(
        method="GET",
        path="/v1/models",
        handler=listing.list_models,
        summary="List the models",
        answer=ModelList,
        statuses=(401,),
    ),
    HttpRoute(
        method="GET",
        path="/v1/models/{id:.+}",
        handler=listing.show_model,
        summary="One model",
        answer=Model,
        statuses=(401, 404),
    ),
    HttpRoute(
        method="GET",
        path="/health",
        handler=listing.health,
        access=Access.PROBE,
        summary="Whether requests are taken",
    ),
    HttpRoute(
        method="GET",
        path="/live",
        handler=listing.live,
        access=Access.PROBE,
        summary="Whether the process runs",
    ),
    HttpRoute(method="GET", path="/metrics", handler=listing.metrics, access=Access.METRICS),
    HttpRoute(method="GET", path="/openapi.json", handler=docs.openapi_json),
    HttpRoute(method="GET", path="/docs", handler=docs.docs),
    HttpRoute(
        method="POST",
        path="/clear_kv_blocks",
        handler=admin.clear_kv_blocks,
        summary="Empty the caches of all workers",
        answer=admin.ClearedBlocks,
        statuses=(401, 500),
    ),
    HttpRoute(
        method="GET",
        path="/router/decisions",
        handler=decisions.decisions,
        summary="The last choices of workers with their reasons (limit=, candidates=, model=)",
        statuses=(400, 401),
    ),
    HttpRoute(
        method="GET",
        path="/busy_threshold",
        handler=admin.get_thresholds,
        summary="From which load on workers are busy",
        answer=admin.ThresholdList,
        statuses=(401,),
    ),
    HttpRoute(
        method="POST",
        path="/busy_threshold",
        handler=admin.set_thresholds,
        body=admin.ThresholdRequest,
        summary="Say from which load on a model's workers are busy",
        answer=admin.ModelThresholds,
        statuses=(400, 401, 404, 413, 415, 503),
    ),
)


async def not_found(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
    raise HttpError(404, f"Route not found: {call.request.method} {call.request.path}")


UNKNOWN_PATHS = (
    HttpRoute(method="*", path=r"/v1/messages{rest:[\s\S]*}", handler=not_found, error=AnthropicError),
    HttpRoute(method="*", path=r"/{rest:[\s\S]*}", handler=not_found),
)
"""Matched after all others, and with all methods."""


def wrong_method(routes: list[HttpRoute[Any]]) -> HttpRoute[None]:
    """Answers whatever method the routes of one path leave."""
    first, allowed = routes[0], ", ".join(sorted(route.method for route in routes))

    async def refuse(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
        error = HttpError(405, f"{call.request.method} is not allowed here; use {allowed}")
        answer = error_response(error, call.request_id, first.error)
        answer.headers["Allow"] = allowed
        return answer

    return HttpRoute(method="*", path=first.path, handler=refuse, access=first.access, error=first.error)
