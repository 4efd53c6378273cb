"""Ollama's API, so that its clients connect: chats, prompts, embeddings and the models."""

from __future__ import annotations

import math
import time
from typing import Any

from aiohttp import web

from dynamo.api.answers.http import json_response, stream_response
from dynamo.api.host import Host
from dynamo.api.ollama.describe import API_VERSION, describe_model
from dynamo.api.ollama.messages import (
    OLLAMA,
    OllamaAnswer,
    OllamaChatRequest,
    OllamaEmbedding,
    OllamaEmbeddings,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaShowRequest,
)
from dynamo.api.ollama.stream import NDJSON, OllamaLines, OllamaWriter
from dynamo.api.ollama.to_chat import ollama_to_chat
from dynamo.api.route import Api, HttpCall, HttpRoute, inference
from dynamo.pipeline.validate import validate_chat, validate_embedding
from dynamo.process.threads import in_thread
from dynamo.protocols.card import ModelType
from dynamo.protocols.embeddings import EmbeddingRequest
from dynamo.protocols.errors import InvalidRequest, ModelNotFound
from dynamo.serving.conversation import Conversation
from dynamo.serving.embedding import Embeddings
from dynamo.serving.request import require_type
from dynamo.serving.served_model import ServedModel

LATEST = ":latest"
"""The tag that Ollama's clients add to a name without one."""
_LOADED = {"expires_at": "9999-12-31T23:59:59Z", "size_vram": 0}


async def chat(host: Host, call: HttpCall[OllamaChatRequest]) -> web.StreamResponse:
    return await _answer(host, call, is_chat=True, is_empty=not call.body.messages)


async def generate(host: Host, call: HttpCall[OllamaGenerateRequest]) -> web.StreamResponse:
    return await _answer(host, call, is_chat=False, is_empty=not call.body.prompt)


async def embed(host: Host, call: HttpCall[OllamaEmbedRequest]) -> web.StreamResponse:
    began, body = time.monotonic_ns(), call.body
    vectors, tokens = await _embed(host, call, body.input, body.dimensions, truncate=body.truncate is not False)
    return json_response(
        OllamaEmbeddings(
            model=body.model,
            embeddings=[_unit_length(vector) for vector in vectors],
            total_duration=time.monotonic_ns() - began,
            prompt_eval_count=tokens,
        )
    )


async def embeddings(host: Host, call: HttpCall[OllamaEmbeddingsRequest]) -> web.StreamResponse:
    vectors, _ = await _embed(host, call, call.body.prompt, None, truncate=True)
    return json_response(OllamaEmbedding(embedding=vectors[0] if vectors else []))


async def _embed(
    host: Host,
    call: HttpCall[OllamaEmbedRequest] | HttpCall[OllamaEmbeddingsRequest],
    input: str | list[str],
    dimensions: int | None,
    *,
    truncate: bool,
) -> tuple[list[list[float]], int]:
    """The vectors as the worker gave them, and how many tokens the inputs had."""
    model = _model(host, call.body.model)
    if not input:
        require_type(model, ModelType.Embedding)
        return [], 0  # Ollama loads the model then; here it is loaded
    request = EmbeddingRequest(model=model.name, input=[input] if isinstance(input, str) else [*input])
    request.dimensions = dimensions or None
    validate_embedding(request)
    inference = Embeddings(model, request, call.context(request), call.record)
    try:
        vectors, usage = await inference.vectors(truncate=truncate)
    finally:
        await inference.close()
    return vectors, usage.prompt_tokens


def _unit_length(vector: list[float]) -> list[float]:
    length = math.hypot(*vector)
    return [number / length for number in vector] if length else vector


async def tags(host: Host, call: HttpCall[None]) -> web.StreamResponse:
    return json_response({"models": await in_thread(lambda: [describe_model(model) for model in _usable(host)])})


async def ps(host: Host, call: HttpCall[None]) -> web.StreamResponse:
    """The loaded models: all that are served, for as long as they are."""
    models = await in_thread(lambda: [describe_model(model) for model in _usable(host)])
    return json_response({"models": [model | _LOADED for model in models]})


async def version(host: Host, call: HttpCall[None]) -> web.StreamResponse:
    return json_response({"version": API_VERSION})


async def show(host: Host, call: HttpCall[OllamaShowRequest]) -> web.StreamResponse:
    name = call.body.model or call.body.name
    if not name:
        raise InvalidRequest.missing("model")
    model = _model(host, name)
    info: dict[str, Any] = {"general.architecture": "dynamo"}
    if model.card.context_length:
        info["dynamo.context_length"] = model.card.context_length
    capabilities = ["completion"] if model.card.type & ModelType.Chat else []
    if model.card.type & ModelType.Embedding:
        capabilities.append("embedding")
    if model.card.runtime_config.tool_call_parser:
        capabilities.append("tools")
    if model.card.runtime_config.reasoning_parser:
        capabilities.append("thinking")
    if model.preprocessor is None and model.card.type & ModelType.Chat:
        # Its workers read messages as they are sent; all others get tokens.
        capabilities.append("vision")
    listed = await in_thread(lambda: describe_model(model))
    return json_response(
        {
            "modelfile": "",
            "parameters": "",
            "template": "",
            "details": listed["details"],
            "model_info": info,
            "capabilities": capabilities,
            "modified_at": listed["modified_at"],
        }
    )


async def _answer(
    host: Host,
    call: HttpCall[OllamaChatRequest] | HttpCall[OllamaGenerateRequest],
    *,
    is_chat: bool,
    is_empty: bool,
) -> web.StreamResponse:
    model = _model(host, call.body.model)
    answers = OllamaLines(model.name, is_chat=is_chat)
    if is_empty:
        # Ollama loads the model then; here it is loaded.
        loaded = answers.piece()
        loaded.done, loaded.done_reason = True, "load"
        return json_response(loaded)
    request = ollama_to_chat(call.body, model.name)
    validate_chat(request)
    conversation = Conversation(model, request, call.context(request), call.record)
    answers.first_output = lambda: conversation.first_output_time
    try:
        await conversation.prepare()
        if not call.body.stream:
            return json_response(answers.whole(conversation.completion(await conversation.collect())))
        writer = OllamaWriter(answers)
        await conversation.send([writer])
        return await stream_response(call, writer)
    finally:
        await conversation.close()


def _model(host: Host, name: str) -> ServedModel:
    try:
        return host.models.get(name)
    except ModelNotFound:
        if not name.endswith(LATEST):
            raise
        return host.models.get(name.removesuffix(LATEST))


def _usable(host: Host) -> list[ServedModel]:
    """The models that Ollama's API has routes for, by name."""
    models = [model for model in host.models.served() if model.card.type & (ModelType.Chat | ModelType.Embedding)]
    return sorted(models, key=lambda model: model.name)


_ANSWERS: dict[str, Any] = {"streams": True, "stream_type": NDJSON}
_ANY: dict[str, Any] = {"dialect": OLLAMA, "any_content_type": True}
"""Its users call it with `curl -d`, which declares a form, as Ollama's own documentation does."""

OLLAMA_API = Api(
    (
        inference(
            "/api/chat", chat, OllamaChatRequest, OllamaAnswer, "Continue a conversation, as Ollama",
            endpoint="ollama_chat", **_ANSWERS, **_ANY,
        ),
        inference(
            "/api/generate", generate, OllamaGenerateRequest, OllamaAnswer, "Answer a prompt, as Ollama",
            endpoint="ollama_generate", **_ANSWERS, **_ANY,
        ),
        inference(
            "/api/embed", embed, OllamaEmbedRequest, OllamaEmbeddings, "Embed texts, as Ollama",
            endpoint="ollama_embed", embeds=True, **_ANY,
        ),
        inference(
            "/api/embeddings", embeddings, OllamaEmbeddingsRequest, OllamaEmbedding,
            "Embed a text, as Ollama did before /api/embed", endpoint="ollama_embeddings", embeds=True, **_ANY,
        ),
        HttpRoute(
            "POST", "/api/show", show, OllamaShowRequest,
            summary="One model, as Ollama", statuses=(400, 401, 404, 413, 503), **_ANY,
        ),
        HttpRoute("GET", "/api/tags", tags, summary="List the models, as Ollama", statuses=(401,), dialect=OLLAMA),
        HttpRoute("GET", "/api/ps", ps, summary="List the loaded models, as Ollama", statuses=(401,), dialect=OLLAMA),
        HttpRoute("GET", "/api/version", version, dialect=OLLAMA),
    ),
    prefix="/api/",
    dialect=OLLAMA,
)  # fmt: skip
