"""GET /health, /live and /metrics."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from dynamo.api.answers.http import json_response
from dynamo.api.route import HttpCall
from dynamo.frontend.state import Frontend
from dynamo.runtime.exposition import CONTENT_TYPE, exposition
from dynamo.runtime.names import CONTROL_ENDPOINT, SCHEME


async def health(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
    if frontend.draining:
        answer = {"status": "not_ready", "stage": "draining", "message": "Service is not ready"}
        return json_response(answer, status=503)
    if not frontend.started or frontend.models.is_loading:
        loading = {"status": "not_ready", "stage": "loading", "message": "A model is loading"}
        return json_response(loading, status=503)
    instances = [one for one in frontend.models.instances() if one.endpoint != CONTROL_ENDPOINT]
    endpoints = {f"{SCHEME}{one.namespace}.{one.component}.{one.endpoint}" for one in instances}
    listed: list[Any] = [msgspec.to_builtins(one) for one in instances]
    if not frontend.callers.sees_addresses(call.request):
        for one in listed:
            for name in ("address", "host", "pid", "gpus"):
                del one[name]
    return json_response({"status": "healthy", "endpoints": sorted(endpoints), "instances": listed})


async def live(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
    return json_response({"status": "live", "message": "Service is live"})


async def metrics(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
    return web.Response(body=exposition(await frontend.families()), headers={"Content-Type": CONTENT_TYPE})
