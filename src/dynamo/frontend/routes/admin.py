"""Routes for operators: empty the workers' caches, and set the load above which a worker is busy."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from aiohttp import web
from msgspec import UNSET, Struct, UnsetType, structs

from dynamo.api.answers.http import json_response
from dynamo.api.call import HttpCall
from dynamo.frontend.state import Frontend
from dynamo.protocols.errors import DynamoException, from_exception
from dynamo.protocols.fields import FilledString
from dynamo.protocols.instance import Instance
from dynamo.runtime import Context
from dynamo.runtime.names import CLEAR_ENDPOINT
from dynamo.runtime.stream import FirstAnswer
from dynamo.serving.served_model import ServedModel

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Tokens = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Batches = Annotated[float, msgspec.Meta(ge=0)]
CLEAR_SECONDS = 30.0
"""Emptying a cache takes no time: a worker that has not answered by then will not."""


class WorkerResult(Struct, kw_only=True):
    name: str
    endpoint: str
    status: str
    response: Any = UNSET
    error: str | UnsetType = UNSET


class ClearedBlocks(Struct, kw_only=True):
    cleared_workers: list[WorkerResult] | UnsetType = UNSET
    failed_workers: list[WorkerResult] | UnsetType = UNSET
    message: str | UnsetType = UNSET


class BusyThresholds(msgspec.Struct, kw_only=True):
    """The loads above which a worker takes no more requests; None is no limit."""

    active_decode_blocks_threshold: Share | None = None
    active_prefill_tokens_threshold: Tokens | None = None
    active_prefill_tokens_threshold_frac: Batches | None = None


class ThresholdRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Sets the thresholds that are given, null removes one; without any it only reads them."""

    model: FilledString
    active_decode_blocks_threshold: Share | UnsetType | None = UNSET
    active_prefill_tokens_threshold: Tokens | UnsetType | None = UNSET
    active_prefill_tokens_threshold_frac: Batches | UnsetType | None = UNSET


class ModelThresholds(BusyThresholds, kw_only=True):
    model: str


class ThresholdList(Struct, kw_only=True):
    thresholds: list[ModelThresholds]


async def clear_kv_blocks(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
    everything = frontend.models.instances()
    groups = {
        (one.namespace, one.component): model.name for model in frontend.models.served() for one in model.instances()
    }
    if not groups:
        return json_response(ClearedBlocks(message="No active worker groups found"))
    cleared: list[WorkerResult] = []
    failed: list[WorkerResult] = []
    clearing = []
    for (namespace, component), name in sorted(groups.items()):
        here = [
            one
            for one in everything
            if (one.namespace, one.component, one.endpoint) == (namespace, component, CLEAR_ENDPOINT)
        ]
        clearing += [_clear(frontend, name, one) for one in here]
        if not here:
            place = f"{namespace}/{component}/{CLEAR_ENDPOINT}"
            why = "this worker group serves no such endpoint"
            failed.append(WorkerResult(name=name, endpoint=place, status="unsupported", error=why))
    for result in await asyncio.gather(*clearing):
        (failed if result.error else cleared).append(result)
    return json_response(ClearedBlocks(cleared_workers=cleared, failed_workers=failed))


async def _clear(frontend: Frontend, model: str, instance: Instance) -> WorkerResult:
    result = WorkerResult(
        name=f"{model}-instance-{instance.instance_id}",
        endpoint=f"{instance.namespace}/{instance.component}/{CLEAR_ENDPOINT}",
        status="cleared",
    )
    context, answer = Context(), FirstAnswer()
    try:
        async with asyncio.timeout(CLEAR_SECONDS):
            channel = frontend.models.channel(instance)
            if not channel.ready:
                await channel.open()
            channel.send({}, context, answer)
            result.response = await answer.value
    except (DynamoException, TimeoutError) as error:
        result.status, result.error = "failed", from_exception(error).message
    finally:
        context.kill()
    return result


async def get_thresholds(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
    models = sorted(frontend.models.served(), key=lambda model: model.name)
    return json_response(ThresholdList(thresholds=[_thresholds(model) for model in models]))


async def set_thresholds(frontend: Frontend, call: HttpCall[ThresholdRequest]) -> web.StreamResponse:
    body = call.body
    model = frontend.models.get(body.model)
    given = {name: value for name in BusyThresholds.__struct_fields__ if (value := getattr(body, name)) is not UNSET}
    if given:
        await frontend.set_thresholds(model.name, given)
    return json_response(_thresholds(model))


def _thresholds(model: ServedModel) -> ModelThresholds:
    return ModelThresholds(model=model.name, **structs.asdict(model.router.thresholds))
