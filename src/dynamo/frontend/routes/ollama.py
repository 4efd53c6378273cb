"""Ollama's /api/chat, /api/generate, /api/tags, /api/ps, /api/show and /api/version, so that its clients connect."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from dynamo.frontend.answers.http import json_response, stream_response
from dynamo.frontend.answers.ollama_stream import OllamaAnswers, OllamaWriter
from dynamo.frontend.call import HttpCall
from dynamo.frontend.state import Frontend
from dynamo.pipeline.ollama_to_chat import ollama_to_chat
from dynamo.pipeline.validate import validate_chat
from dynamo.protocols.card import ModelType
from dynamo.protocols.errors import InvalidRequest, ModelNotFound
from dynamo.protocols.ollama import OllamaChatRequest, OllamaGenerateRequest, OllamaShowRequest
from dynamo.serving.conversation import Conversation
from dynamo.serving.served_model import ServedModel

LATEST = ":latest"
"""The tag that Ollama's clients add to a name without one."""
_LOADED = {"expires_at": "9999-12-31T23:59:59Z", "size_vram": 0}


async def chat(frontend: Frontend, call: HttpCall[OllamaChatRequest]) -> web.StreamResponse:
    return await _answer(frontend, call, is_chat=True, is_empty=not call.body.messages)


async def generate(frontend: Frontend, call: HttpCall[OllamaGenerateRequest]) -> web.StreamResponse:
    return await _answer(frontend, call, is_chat=False, is_empty=not call.body.prompt)


async def tags(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
    models = sorted(frontend.models.served(), key=lambda model: model.name)
    return json_response({"models": [_listed(model) for model in models if model.card.type & ModelType.Chat]})


async def ps(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
    """The loaded models: all that are served, for as long as they are."""
    models = sorted(frontend.models.served(), key=lambda model: model.name)
    return json_response({"models": [_listed(model) | _LOADED for model in models if model.card.type & ModelType.Chat]})


async def show(frontend: Frontend, call: HttpCall[OllamaShowRequest]) -> web.StreamResponse:
    name = call.body.model or call.body.name
    if not name:
        raise InvalidRequest.missing("model")
    model = _model(frontend, name)
    info: dict[str, Any] = {"general.architecture": "dynamo"}
    if model.card.context_length:
        info["dynamo.context_length"] = model.card.context_length
    capabilities = ["completion"]
    if model.card.runtime_config.tool_call_parser:
        capabilities.append("tools")
    if model.card.runtime_config.reasoning_parser:
        capabilities.append("thinking")
    listed = _listed(model)
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
    frontend: Frontend,
    call: HttpCall[OllamaChatRequest] | HttpCall[OllamaGenerateRequest],
    *,
    is_chat: bool,
    is_empty: bool,
) -> web.StreamResponse:
    model = _model(frontend, call.body.model)
    answers = OllamaAnswers(model.name, is_chat=is_chat)
    if is_empty:
        # Ollama loads the model then; here it is loaded.
        loaded = answers.piece()
        loaded.done, loaded.done_reason = True, "load"
        return json_response(loaded)
    request = ollama_to_chat(call.body, model.name)
    validate_chat(request)
    conversation = Conversation(model, request, call.context(request), call.record)
    try:
        await conversation.prepare()
        if not call.body.stream:
            return json_response(answers.whole(conversation.completion(await conversation.collect())))
        writer = OllamaWriter(answers)
        await conversation.send([writer])
        return await stream_response(call, writer)
    finally:
        await conversation.close()


def _model(frontend: Frontend, name: str) -> ServedModel:
    try:
        return frontend.models.get(name)
    except ModelNotFound:
        if not name.endswith(LATEST):
            raise
        return frontend.models.get(name.removesuffix(LATEST))


def _listed(model: ServedModel) -> dict[str, Any]:
    created = datetime.fromtimestamp(model.created, UTC).isoformat().replace("+00:00", "Z")
    details = {
        "parent_model": "",
        "format": "",
        "family": "",
        "families": [],
        "parameter_size": "",
        "quantization_level": "",
    }
    digest = model.card.checksum()
    return {
        "name": model.name,
        "model": model.name,
        "modified_at": created,
        "size": 0,
        "digest": digest,
        "details": details,
    }
