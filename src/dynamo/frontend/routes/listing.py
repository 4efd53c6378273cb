"""GET /v1/models, /v1/models/{id}, /health, /live and /metrics."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
from aiohttp import web

from dynamo.api.answers.http import json_response
from dynamo.api.anthropic.answers import AnthropicModel, AnthropicModelList
from dynamo.api.call import HttpCall
from dynamo.frontend.state import Frontend
from dynamo.protocols.answers import Model, ModelList
from dynamo.runtime.exposition import CONTENT_TYPE, exposition
from dynamo.runtime.names import SCHEME
from dynamo.serving.served_model import ServedModel


async def list_models(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
    models = sorted(frontend.models.served(), key=lambda model: model.name)
    if _wants_anthropic(call.request):
        return json_response(AnthropicModelList.of([_anthropic(model) for model in models]))
    return json_response(ModelList(data=[_openai(model) for model in models]))


async def show_model(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
    model = frontend.models.get(call.request.match_info["id"])
    return json_response(_anthropic(model) if _wants_anthropic(call.request) else _openai(model))


async def health(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
    if frontend.draining:
        answer = {"status": "not_ready", "stage": "draining", "message": "Service is not ready"}
        return json_response(answer, status=503)
    if not frontend.started or frontend.models.is_loading:
        loading = {"status": "not_ready", "stage": "loading", "message": "A model is loading"}
        return json_response(loading, status=503)
    instances = frontend.models.instances()
    endpoints = {f"{SCHEME}{one.namespace}.{one.component}.{one.endpoint}" for one in instances}
    listed: list[Any] = [msgspec.to_builtins(one) for one in instances]
    if not frontend.callers.sees_addresses(call.request):
        for one in listed:
            del one["address"]
    return json_response({"status": "healthy", "endpoints": sorted(endpoints), "instances": listed})


async def live(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
    return json_response({"status": "live", "message": "Service is live"})


async def metrics(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
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
