"""GET /v1/models, /v1/models/{id}, /health, /live and /metrics: what is there, in OpenAI's or Anthropic's words."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from aiohttp import web

from dynamo.frontend.answers.answer import json_response
from dynamo.protocols.anthropic_answers import AnthropicModel, AnthropicModelList
from dynamo.protocols.openai_answers import Model, ModelList
from dynamo.runtime.exposition import CONTENT_TYPE, exposition
from dynamo.runtime.names import SCHEME
from dynamo.serving.models import ServedModel

if TYPE_CHECKING:
    from dynamo.frontend.app import Frontend


async def list_models(frontend: Frontend, request: web.Request, request_id: str) -> web.StreamResponse:
    models = sorted(frontend.models.served(), key=lambda model: model.name)
    if _wants_anthropic(request):
        return json_response(AnthropicModelList.of([_anthropic(model) for model in models]), request_id)
    return json_response(ModelList(data=[_openai(model) for model in models]), request_id)


async def show_model(frontend: Frontend, request: web.Request, request_id: str) -> web.StreamResponse:
    model = frontend.models.get(request.match_info["id"])
    return json_response(_anthropic(model) if _wants_anthropic(request) else _openai(model), request_id)


async def health(frontend: Frontend, request: web.Request, request_id: str) -> web.StreamResponse:
    if frontend.gate.draining:
        answer = {"status": "not_ready", "stage": "draining", "message": "Service is not ready"}
        return json_response(answer, request_id, status=503)
    instances = frontend.models.instances()
    endpoints = {f"{SCHEME}{one.namespace}.{one.component}.{one.endpoint}" for one in instances}
    return json_response({"status": "healthy", "endpoints": sorted(endpoints), "instances": instances}, request_id)


async def live(frontend: Frontend, request: web.Request, request_id: str) -> web.StreamResponse:
    return json_response({"status": "live", "message": "Service is live"}, request_id)


async def metrics(frontend: Frontend, request: web.Request, request_id: str) -> web.StreamResponse:
    return web.Response(body=exposition(await frontend.families()), headers={"Content-Type": CONTENT_TYPE})


def _wants_anthropic(request: web.Request) -> bool:
    return "anthropic-version" in request.headers


def _openai(model: ServedModel) -> Model:
    answer = Model(id=model.name, created=model.created, owned_by="dynamo")
    if model.card.context_length:
        answer.max_model_len = model.card.context_length
    return answer


def _anthropic(model: ServedModel) -> AnthropicModel:
    created = datetime.fromtimestamp(model.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    answer = AnthropicModel(id=model.name, display_name=model.name, created_at=created)
    if model.card.context_length:
        answer.max_input_tokens = model.card.context_length
    return answer
