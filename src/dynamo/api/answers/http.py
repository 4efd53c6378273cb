"""How an answer is sent: as one JSON object, as a page of a list, or as a stream that opens with its first event."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec
from aiohttp import web

from dynamo.api.answers.sse import EventStream
from dynamo.api.route import HttpCall
from dynamo.protocols.answers import Page
from dynamo.protocols.errors import DynamoException, InvalidRequest
from dynamo.serving.request import ModelRequest

KEEP_ALIVE_SECONDS = web.AppKey("keep_alive_seconds", float)
"""How often a comment is sent until the first event; 0 is never."""


class StreamedResponse(Protocol):
    """Writes the events of one answer."""

    events: EventStream
    error: DynamoException | None


def json_response(answer: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(answer), status=status, content_type="application/json")


def page(request: web.Request, ids: Sequence[str], values: Sequence[Any], *, limit: int = 20, most: int = 100) -> Page:
    """The page of a list that the request's query asks for, as OpenAI's; `ids` and `values` come oldest first."""
    query = request.query
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest.bad_value("order", f"{order[:64]!r} is not one of 'asc', 'desc'")
    if "limit" in query:
        text = query["limit"]
        if not (text.isascii() and text.isdecimal() and len(text) < 9 and 1 <= int(text) <= most):
            raise InvalidRequest.bad_value("limit", f"must be a whole number from 1 to {most}")
        limit = int(text)
    listed = list(zip(ids, values, strict=True))
    if order == "desc":
        listed.reverse()
    if after := query.get("after"):
        start = next((index for index, (id, _) in enumerate(listed, start=1) if id == after), None)
        if start is None:
            raise InvalidRequest.bad_value("after", f"there is no {after[:128]!r} in this list")
        listed = listed[start:]
    shown = listed[:limit]
    return Page(
        data=[value for _, value in shown],
        first_id=shown[0][0] if shown else None,
        last_id=shown[-1][0] if shown else None,
        has_more=len(listed) > limit,
    )


async def stream_response(
    call: HttpCall[Any],
    answer: StreamedResponse,
    inference: ModelRequest[Any] | None = None,
    at_end: Callable[[], Awaitable[None]] | None = None,
) -> web.StreamResponse:
    """Send the annotations that `inference` asks for, then the events. Waits for the first event, so that an earlier
    failure still has a status.

    `at_end` is awaited before the client gets the last event.
    """
    events, request = answer.events, call.request
    headers = {"Cache-Control": "no-cache"}
    if inference is not None and inference.stream is not None:
        headers["X-Dynamo-Stream"] = inference.stream.name.name
    call.record.stream = True
    if every := request.app[KEEP_ALIVE_SECONDS]:
        await events.kept_alive(request, headers, every)
    else:
        await events.begun()
    if answer.error and not events.has_begun:
        raise answer.error
    await events.open(request, headers, annotation_events(inference) if inference else b"")
    await events.ended
    if at_end:
        await at_end()
    return await events.close()


def annotation_events(inference: ModelRequest[Any]) -> bytes:
    """The events for `nvext.annotations`, sent before all others. Values are comments, which OpenAI clients skip."""
    nvext = inference.request.nvext
    if nvext is None or not nvext.annotations:
        return b""
    values = {"request_id": inference.context.id()}
    if prepared := inference.prepared:
        if prepared.prompt is not None:
            values["formatted_prompt"] = prepared.prompt
        values["token_ids"] = msgspec.json.encode([*prepared.request.token_ids]).decode()
    names = dict.fromkeys(nvext.annotations)
    return b"".join(
        b"event: %b\n: %b\n\n" % (name.encode(), msgspec.json.encode(values[name])) for name in names if name in values
    )
