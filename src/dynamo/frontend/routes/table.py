"""All routes of the server, in one table."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from dynamo.api.access import Access
from dynamo.api.answers.errors import error_response
from dynamo.api.anthropic import routes as messages
from dynamo.api.anthropic.answers import AnthropicError, AnthropicMessage, TokenCount
from dynamo.api.anthropic.request import CountTokensRequest, MessagesRequest
from dynamo.api.call import Body, HttpCall
from dynamo.api.ollama import routes as ollama
from dynamo.api.ollama.messages import (
    OllamaAnswer,
    OllamaChatRequest,
    OllamaEmbedding,
    OllamaEmbeddings,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaError,
    OllamaGenerateRequest,
    OllamaShowRequest,
)
from dynamo.api.ollama.stream import NDJSON
from dynamo.api.openai import batches, chat, completions, embeddings, files, tokens
from dynamo.api.openai.token_objects import DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest
from dynamo.api.responses import conversations
from dynamo.api.responses import routes as responses
from dynamo.api.responses.answers import DeletedResponse, InputTokens, ResponseObject
from dynamo.api.responses.conversation_objects import (
    ConversationObject,
    CreateConversationRequest,
    CreateItemsRequest,
    DeletedConversation,
    UpdateConversationRequest,
)
from dynamo.api.responses.request import InputTokensRequest, ResponsesRequest
from dynamo.api.route import Handler, HttpRoute
from dynamo.frontend.routes import admin, decisions, docs, fleet, inspect_process, listing, ui
from dynamo.frontend.state import Frontend
from dynamo.protocols.answers import ChatCompletion, Model, ModelList, Page, TextCompletion
from dynamo.protocols.chat import ChatRequest
from dynamo.protocols.completions import CompletionRequest
from dynamo.protocols.embeddings import EmbeddingList, EmbeddingRequest
from dynamo.protocols.errors import HttpError
from dynamo.protocols.files import BatchObject, CreateBatchRequest, DeletedFile, FileObject
from dynamo.runtime.inspection import InspectionRequest

_INFERENCE_ERRORS = (400, 401, 404, 413, 415, 429, 500, 502, 503, 504)
_STORED_ERRORS = (400, 401, 404)
_WRITTEN_ERRORS = (400, 401, 404, 413, 415)
_OLLAMA: dict[str, Any] = {"error": OllamaError, "any_content_type": True}
"""Its users call it with `curl -d`, which declares a form, as Ollama's own documentation does."""


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
    HttpRoute(
        "POST", "/v1/responses/input_tokens", responses.input_tokens, InputTokensRequest,
        summary="Count the tokens of a Responses request", answer=InputTokens, statuses=_INFERENCE_ERRORS,
    ),
    HttpRoute(
        "GET", "/v1/responses/{id}", responses.show_response,
        summary="A stored response", answer=ResponseObject, statuses=_STORED_ERRORS,
    ),
    HttpRoute(
        "DELETE", "/v1/responses/{id}", responses.delete_response,
        summary="Delete a stored response", answer=DeletedResponse, statuses=_STORED_ERRORS,
    ),
    HttpRoute("POST", "/v1/responses/{id}/cancel", responses.cancel_response),
    HttpRoute(
        "GET", "/v1/responses/{id}/input_items", responses.input_items,
        summary="What a stored response answers to", answer=Page, statuses=_STORED_ERRORS,
    ),
    HttpRoute(
        "POST", "/v1/conversations", conversations.create_conversation, CreateConversationRequest,
        summary="Start a conversation", answer=ConversationObject, statuses=_WRITTEN_ERRORS,
    ),
    HttpRoute(
        "GET", "/v1/conversations/{id}", conversations.show_conversation,
        summary="A conversation", answer=ConversationObject, statuses=_STORED_ERRORS,
    ),
    HttpRoute(
        "POST", "/v1/conversations/{id}", conversations.update_conversation, UpdateConversationRequest,
        summary="Replace a conversation's metadata", answer=ConversationObject, statuses=_WRITTEN_ERRORS,
    ),
    HttpRoute(
        "DELETE", "/v1/conversations/{id}", conversations.delete_conversation,
        summary="Delete a conversation", answer=DeletedConversation, statuses=_STORED_ERRORS,
    ),
    HttpRoute(
        "POST", "/v1/conversations/{id}/items", conversations.create_items, CreateItemsRequest,
        summary="Add items to a conversation", answer=Page, statuses=_WRITTEN_ERRORS,
    ),
    HttpRoute(
        "GET", "/v1/conversations/{id}/items", conversations.list_items,
        summary="The items of a conversation", answer=Page, statuses=_STORED_ERRORS,
    ),
    HttpRoute(
        "GET", "/v1/conversations/{id}/items/{item_id}", conversations.show_item,
        summary="One item of a conversation", statuses=_STORED_ERRORS,
    ),
    HttpRoute(
        "DELETE", "/v1/conversations/{id}/items/{item_id}", conversations.delete_item,
        summary="Delete an item of a conversation", answer=ConversationObject, statuses=_STORED_ERRORS,
    ),
    HttpRoute(
        "POST", "/v1/files", files.create_file,
        summary="Upload a file (multipart/form-data: file, purpose)", answer=FileObject, statuses=_WRITTEN_ERRORS,
    ),
    HttpRoute("GET", "/v1/files", files.list_files, summary="List the files", answer=Page, statuses=(400, 401)),
    HttpRoute(
        "GET", "/v1/files/{id}", files.show_file, summary="One file", answer=FileObject, statuses=_STORED_ERRORS
    ),
    HttpRoute(
        "DELETE", "/v1/files/{id}", files.delete_file,
        summary="Delete a file", answer=DeletedFile, statuses=_STORED_ERRORS,
    ),
    HttpRoute("GET", "/v1/files/{id}/content", files.file_content),
    HttpRoute(
        "POST", "/v1/batches", batches.create_batch, CreateBatchRequest,
        summary="Answer the requests of a file", answer=BatchObject, statuses=_WRITTEN_ERRORS,
    ),
    HttpRoute(
        "GET", "/v1/batches", batches.list_batches, summary="List the batches", answer=Page, statuses=(400, 401)
    ),
    HttpRoute(
        "GET", "/v1/batches/{id}", batches.show_batch, summary="One batch", answer=BatchObject, statuses=_STORED_ERRORS
    ),
    HttpRoute(
        "POST", "/v1/batches/{id}/cancel", batches.cancel_batch,
        summary="Cancel a batch", answer=BatchObject, statuses=_STORED_ERRORS,
    ),
    _inference(
        "/v1/messages", messages.messages, MessagesRequest, AnthropicMessage, "anthropic_messages",
        "Continue a conversation, as Anthropic's Messages", streams=True, error=AnthropicError,
    ),
    _inference(
        "/v1/messages/count_tokens", messages.count_tokens, CountTokensRequest, TokenCount, None,
        "Count the tokens of a prompt", error=AnthropicError,
    ),
    _inference(
        "/api/chat", ollama.chat, OllamaChatRequest, OllamaAnswer, "ollama_chat",
        "Continue a conversation, as Ollama", streams=True, stream_type=NDJSON, **_OLLAMA,
    ),
    _inference(
        "/api/generate", ollama.generate, OllamaGenerateRequest, OllamaAnswer, "ollama_generate",
        "Answer a prompt, as Ollama", streams=True, stream_type=NDJSON, **_OLLAMA,
    ),
    _inference(
        "/api/embed", ollama.embed, OllamaEmbedRequest, OllamaEmbeddings, "ollama_embed",
        "Embed texts, as Ollama", **_OLLAMA,
    ),
    _inference(
        "/api/embeddings", ollama.embeddings, OllamaEmbeddingsRequest, OllamaEmbedding, "ollama_embeddings",
        "Embed a text, as Ollama did before /api/embed", **_OLLAMA,
    ),
    HttpRoute(
        "POST", "/api/show", ollama.show, OllamaShowRequest,
        summary="One model, as Ollama", statuses=(400, 401, 404, 413, 503), **_OLLAMA,
    ),
    HttpRoute(
        "GET", "/api/tags", ollama.tags, summary="List the models, as Ollama", error=OllamaError, statuses=(401,)
    ),
    HttpRoute(
        "GET", "/api/ps", ollama.ps, summary="List the loaded models, as Ollama", error=OllamaError, statuses=(401,)
    ),
    HttpRoute("GET", "/api/version", tokens.version, error=OllamaError),
    _inference("/tokenize", tokens.tokenize, TokenizeRequest, TokenizeAnswer, None, "The tokens of a text or a chat"),
    _inference("/detokenize", tokens.detokenize, DetokenizeRequest, DetokenizeAnswer, None, "The text of tokens"),
    HttpRoute("GET", "/version", tokens.version, summary="The version of this server"),
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
        "POST", "/clear_kv_blocks", admin.clear_kv_blocks, access=Access.ADMIN,
        summary="Empty the caches of all workers", answer=admin.ClearedBlocks, statuses=(401, 403, 500),
    ),
    HttpRoute(
        "GET", "/router/decisions", decisions.decisions, access=Access.ADMIN,
        summary="The last choices of workers with their reasons (limit=, candidates=, model=)",
        statuses=(400, 401, 403),
    ),
    HttpRoute(
        "POST", "/inspect", inspect_process.inspect_process, InspectionRequest, access=Access.ADMIN,
        summary="Tasks, streams, stacks or a profile of this process, as `dynamo inspect` shows them (lines of JSON)",
        statuses=(400, 401, 403, 413, 415), streams=True, stream_type=NDJSON,
    ),
    HttpRoute(
        "GET", "/fleet/events", fleet.events, access=Access.ADMIN,
        summary="The fleet as it changes: a snapshot, then merge patches, as server-sent events",
        statuses=(401, 403, 503), streams=True,
    ),
    HttpRoute(
        "GET", "/busy_threshold", admin.get_thresholds,
        summary="From which load on workers are busy", answer=admin.ThresholdList, statuses=(401,),
    ),
    HttpRoute(
        "POST", "/busy_threshold", admin.set_thresholds, admin.ThresholdRequest, access=Access.ADMIN,
        summary="Say from which load on a model's workers are busy", answer=admin.ModelThresholds,
        statuses=(400, 401, 403, 404, 413, 415, 503),
    ),
)  # fmt: skip


UI_ROUTES = (
    HttpRoute("GET", "/", ui.chat_page, access=Access.PAGE),
    HttpRoute("GET", "/fleet", ui.fleet_page, access=Access.PAGE),
    HttpRoute("GET", "/ui/{version}/{name}", ui.file, access=Access.PAGE),
)
"""Unless `--no-ui`."""


async def not_found(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
    raise HttpError(404, f"Route not found: {call.request.method} {call.request.path}")


UNKNOWN_PATHS = (
    HttpRoute("*", r"/v1/messages{rest:[\s\S]*}", not_found, error=AnthropicError),
    HttpRoute("*", r"/api/{rest:[\s\S]*}", not_found, error=OllamaError),
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
