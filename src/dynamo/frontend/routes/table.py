"""All routes of the server: those of its APIs, and its own."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from dynamo.api.answers.errors import error_response
from dynamo.api.catalog import APIS
from dynamo.api.route import Access, AnyRoute, Api, HttpCall, HttpRoute
from dynamo.frontend.routes import admin, pages, probes, workers
from dynamo.frontend.state import Frontend
from dynamo.protocols.errors import HttpError
from dynamo.runtime.inspection import InspectionRequest
from dynamo.runtime.inspection.inspection import NDJSON

OWN_ROUTES: tuple[AnyRoute, ...] = (
    HttpRoute("GET", "/health", probes.health, access=Access.PROBE, summary="Whether requests are taken"),
    HttpRoute("GET", "/live", probes.live, access=Access.PROBE, summary="Whether the process runs"),
    HttpRoute("GET", "/metrics", probes.metrics, access=Access.METRICS),
    HttpRoute("GET", "/openapi.json", pages.openapi_json),
    HttpRoute("GET", "/docs", pages.docs),
    HttpRoute(
        "POST", "/clear_kv_blocks", admin.clear_kv_blocks, access=Access.ADMIN,
        summary="Empty the caches of all workers", answer=admin.ClearedBlocks, statuses=(401, 403, 500),
    ),
    HttpRoute(
        "GET", "/router/decisions", admin.decisions, access=Access.ADMIN,
        summary="The last choices of workers with their reasons (limit=, candidates=, model=)",
        statuses=(400, 401, 403),
    ),
    HttpRoute(
        "POST", "/inspect", admin.inspect_process, InspectionRequest, access=Access.ADMIN,
        summary="Tasks, streams, stacks or a profile of this process, as `dynamo inspect` shows them (lines of JSON)",
        statuses=(400, 401, 403, 413, 415), streams=True, stream_type=NDJSON,
    ),
    HttpRoute(
        "GET", "/fleet/events", admin.fleet_events, access=Access.ADMIN,
        summary="The fleet as it changes: a snapshot, then merge patches, as server-sent events",
        statuses=(401, 403, 503), streams=True,
    ),
    HttpRoute(
        "POST", "/fleet/workers/{worker}/{action}", workers.order_worker, access=Access.ADMIN,
        summary="Take a worker out of rotation (drain), take it back (resume) or end it (remove), by its name or id",
        answer=workers.WorkerOrder, statuses=(401, 403, 404, 409, 504),
    ),
    HttpRoute(
        "GET", "/busy_threshold", admin.get_thresholds,
        summary="From which load on workers are busy", answer=admin.ThresholdList, statuses=(401,),
    ),
    HttpRoute(
        "POST", "/busy_threshold", admin.set_thresholds, admin.ThresholdRequest, access=Access.ADMIN,
        summary="Say from which load on a model's workers are busy", answer=admin.ModelThresholds,
        statuses=(400, 401, 403, 404, 413, 415, 503),
    ),
)  # fmt: skip


UI_ROUTES = (
    HttpRoute("GET", "/", pages.chat_page, access=Access.PAGE),
    HttpRoute("GET", "/fleet", pages.fleet_page, access=Access.PAGE),
    HttpRoute("GET", "/ui/{version}/{name}", pages.file, access=Access.PAGE),
)
"""Unless `--no-ui`."""


async def not_found(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
    raise HttpError(404, f"Route not found: {call.request.method} {call.request.path}")


def routes(apis: Sequence[Api] = APIS) -> list[AnyRoute]:
    """Without the pages."""
    return [*(route for api in apis for route in api.routes), *OWN_ROUTES]


def unknown_paths(apis: Sequence[Api]) -> list[AnyRoute]:
    """Matched after all others, and with all methods."""
    known = [(api.prefix, api.dialect) for api in apis if api.prefix is not None]
    return [
        *(HttpRoute("*", prefix + r"{rest:[\s\S]*}", not_found, dialect=dialect) for prefix, dialect in known),
        HttpRoute("*", r"/{rest:[\s\S]*}", not_found),
    ]


def wrong_method(routes: Sequence[AnyRoute]) -> AnyRoute:
    """The route for all methods that a path does not have."""
    first, allowed = routes[0], ", ".join(sorted(route.method for route in routes))

    async def refuse(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
        error = HttpError(405, f"{call.request.method} is not allowed here; use {allowed}")
        answer = error_response(error, call.request_id, first.dialect)
        answer.headers["Allow"] = allowed
        return answer

    return HttpRoute("*", first.path, refuse, access=first.access, dialect=first.dialect)
