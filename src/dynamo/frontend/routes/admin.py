"""Routes for operators: the workers' caches, the load above which one is busy, and the inside of this process."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Annotated, Any

import msgspec
from aiohttp import web
from msgspec import UNSET, Struct, UnsetType, structs

from dynamo.api.answers.http import json_response
from dynamo.api.answers.sse import EVENTS, EventStream
from dynamo.api.route import HttpCall
from dynamo.frontend.state import Frontend
from dynamo.process.threads import in_thread
from dynamo.protocols.errors import DynamoException, InvalidRequest, from_exception
from dynamo.protocols.fields import FilledString
from dynamo.protocols.instance import Instance
from dynamo.router.decision import MOST_CANDIDATES
from dynamo.router.placement import DECISIONS_KEPT
from dynamo.runtime import Context
from dynamo.runtime.inspection import InspectionRequest
from dynamo.runtime.inspection.inspection import NDJSON, encoded_answer
from dynamo.runtime.names import CLEAR_ENDPOINT
from dynamo.runtime.stream import FirstAnswer
from dynamo.serving.served_model import ServedModel

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Tokens = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Batches = Annotated[float, msgspec.Meta(ge=0)]
ANSWER_SECONDS = 30.0
"""What is asked takes no time: a worker that has not answered by then will not."""
DECISIONS_SHOWN = 20
"""Unless the client says how many."""
FLEET_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


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
        (one.namespace, one.component): model.name for model in frontend.models.versions() for one in model.instances()
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
    try:
        result.response = await ask_worker(frontend, instance, {})
    except (DynamoException, TimeoutError) as error:
        result.status, result.error = "failed", from_exception(error).message
    return result


async def ask_worker(frontend: Frontend, instance: Instance, request: Any) -> Any:
    """The answer of an endpoint beside a worker's; raises DynamoException or TimeoutError."""
    context, answer = Context(), FirstAnswer()
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            channel = frontend.models.channel(instance)
            if not channel.ready:
                await channel.open()
            channel.send(request, context, answer)
            return await answer.value
    finally:
        context.kill()


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


async def decisions(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
    """The last choices of workers with their reasons, newest first."""
    request = call.request
    limit = _count(request, "limit", DECISIONS_SHOWN, DECISIONS_KEPT)
    most = _count(request, "candidates", MOST_CANDIDATES, 1 << 20)
    wanted = request.query.get("model")
    models = [frontend.models.get(wanted)] if wanted else frontend.models.served()
    found = [(decision, model.name) for model in models for decision in islice(reversed(model.router.decisions), limit)]
    found.sort(key=lambda one: one[0].time, reverse=True)
    return json_response({"decisions": [decision.record(name, most) for decision, name in found[:limit]]})


def _count(request: web.Request, name: str, default: int, most: int) -> int:
    text = request.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) <= most):
        raise InvalidRequest(f"{name} must be a whole number up to {most}, not '{text}'.", name, "invalid_value")
    return int(text)


async def fleet_events(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
    """The state of the fleet and its changes, as server-sent events."""
    if call.request.method == "HEAD":
        return web.Response(headers=FLEET_HEADERS, content_type=EVENTS)
    stream = EventStream()
    with frontend.fleet.viewer(stream, prefixes=call.request.query.get("prefixes") == "true"):
        await stream.open(call.request, FLEET_HEADERS)
        await stream.ended
    return await stream.close()


async def inspect_process(frontend: Frontend, call: HttpCall[InspectionRequest]) -> web.StreamResponse:
    """What this process does, for `dynamo inspect`; by a thread, as that includes what the event loop does."""
    body = await in_thread(lambda: b"".join(encoded_answer(frontend.inspection, call.body)))
    return web.Response(body=body, content_type=NDJSON)
