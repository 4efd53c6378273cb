"""How an answer leaves: as one JSON object, or as a stream that begins with its first event."""

from __future__ import annotations

from typing import Protocol

import msgspec
from aiohttp import web

from dynamo.frontend.answers.sse import EventStream
from dynamo.frontend.measure.exchange import EXCHANGE
from dynamo.protocols.errors import DynamoException

KEEP_ALIVE_SECONDS = web.AppKey("keep_alive_seconds", float)
"""How often a comment is sent until the first event comes; 0 is never."""


class Streamed(Protocol):
    """Whoever writes the events of one answer."""

    events: EventStream
    error: DynamoException | None


def json_response(answer: object, request_id: str, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(answer),
        status=status,
        content_type="application/json",
        headers={"x-request-id": request_id},
    )


async def stream_response(
    request: web.Request, request_id: str, answer: Streamed, before: bytes = b""
) -> web.StreamResponse:
    """Wait for the first event, so that what fails before it is still an error with a status."""
    events = answer.events
    headers = {"x-request-id": request_id, "Cache-Control": "no-cache"}
    request[EXCHANGE].stream = True
    if every := request.app[KEEP_ALIVE_SECONDS]:
        await events.kept_alive(request, headers, every)
    else:
        await events.begun()
    if answer.error and not events.has_begun:
        raise answer.error
    await events.open(request, headers, before)
    await events.ended
    return await events.close()
