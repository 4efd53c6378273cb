"""GET /router/decisions: the last choices of workers with their reasons, newest first."""

from __future__ import annotations

from itertools import islice

from aiohttp import web

from dynamo.api.answers.http import json_response
from dynamo.api.call import HttpCall
from dynamo.frontend.state import Frontend
from dynamo.protocols.errors import InvalidRequest
from dynamo.router.decision import MOST_CANDIDATES
from dynamo.router.placement import DECISIONS_KEPT

DEFAULT = 20


async def decisions(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
    request = call.request
    limit = _count(request, "limit", DEFAULT, DECISIONS_KEPT)
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
