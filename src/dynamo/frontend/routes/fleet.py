"""GET /fleet/events: the state of the fleet and its changes, as server-sent events."""

from __future__ import annotations

from aiohttp import web

from dynamo.api.answers.sse import EVENTS, EventStream
from dynamo.api.call import HttpCall
from dynamo.frontend.state import Frontend

HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


async def events(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
    if call.request.method == "HEAD":
        return web.Response(headers=HEADERS, content_type=EVENTS)
    stream = EventStream()
    with frontend.fleet.viewer(stream, prefixes=call.request.query.get("prefixes") == "true"):
        await stream.open(call.request, HEADERS)
        await stream.ended
    return await stream.close()
