"""GET /v1/models and /v1/models/{id}, as OpenAI and, for its clients, as Anthropic."""

from __future__ import annotations

from datetime import UTC, datetime

from aiohttp import web
from msgspec import UNSET

from dynamo.api.answers.http import json_response
from dynamo.api.anthropic.answers import ANTHROPIC, AnthropicModel, AnthropicModelList
from dynamo.api.host import Host
from dynamo.api.route import HttpCall
from dynamo.protocols.answers import Model, ModelList, ModelReadiness
from dynamo.serving.served_model import ServedModel


async def list_models(host: Host, call: HttpCall[None]) -> web.StreamResponse:
    models = sorted(host.models.listed(), key=lambda model: model.name)
    if ANTHROPIC.is_of(call.request):
        return json_response(AnthropicModelList.of([_anthropic(model) for model in models]))
    return json_response(ModelList(data=[_openai(model) for model in models]))


async def model_readiness(host: Host, call: HttpCall[None]) -> web.StreamResponse:
    """200 for every model that is known, with whether a request would be served now."""
    name = call.request.match_info["id"]
    readiness = {**dict.fromkeys((model.name for model in host.models.listed()), False), **host.models.readiness()}
    if name not in readiness:
        return json_response(_openai(host.models.get(f"{name}/ready")))  # a model may be called so
    error = host.models.failures().get(name)
    return json_response(ModelReadiness(id=name, ready=readiness[name], reason=str(error) if error else UNSET))


async def show_model(host: Host, call: HttpCall[None]) -> web.StreamResponse:
    model = host.models.get(call.request.match_info["id"])
    return json_response(_anthropic(model) if ANTHROPIC.is_of(call.request) else _openai(model))


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
