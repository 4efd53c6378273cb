"""POST /inspect: what this process does, for `dynamo inspect`."""

from __future__ import annotations

from aiohttp import web

from dynamo.api.call import HttpCall
from dynamo.frontend.state import Frontend
from dynamo.process.threads import in_thread
from dynamo.runtime.inspection import InspectionRequest
from dynamo.runtime.inspection.inspection import NDJSON, encoded_answer


async def inspect_process(frontend: Frontend, call: HttpCall[InspectionRequest]) -> web.StreamResponse:
    """In a thread: the answer includes what the event loop does."""
    body = await in_thread(lambda: b"".join(encoded_answer(frontend.inspection, call.body)))
    return web.Response(body=body, content_type=NDJSON)
