"""/v1/batches: create, list, show and cancel."""

from __future__ import annotations

from aiohttp import web

from dynamo.api.answers.http import json_response
from dynamo.api.answers.paging import page
from dynamo.api.call import HttpCall
from dynamo.frontend.state import Frontend
from dynamo.protocols.files import CreateBatchRequest


async def create_batch(frontend: Frontend, call: HttpCall[CreateBatchRequest]) -> web.StreamResponse:
    return json_response(await frontend.state.of(call.owner).batches.create(call.body))


async def list_batches(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
    batches = await frontend.state.of(call.owner).batches.all()
    return json_response(page(call.request, [batch.id for batch in batches], batches))


async def show_batch(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
    return json_response(await frontend.state.of(call.owner).batches.get(call.request.match_info["id"]))


async def cancel_batch(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
    return json_response(await frontend.state.of(call.owner).batches.cancel(call.request.match_info["id"]))
