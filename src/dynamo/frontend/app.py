"""The web application: the route table, each route behind the gate."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from dynamo.frontend.answers.http import KEEP_ALIVE_SECONDS
from dynamo.frontend.answers.sse import CORK, Cork
from dynamo.frontend.bodies import BodyReader
from dynamo.frontend.call import HttpCall
from dynamo.frontend.config import FrontendConfig
from dynamo.frontend.gate import Gate
from dynamo.frontend.measure.request_record import RequestRecord
from dynamo.frontend.openapi import document
from dynamo.frontend.route import HttpRoute
from dynamo.frontend.routes.docs import DOCUMENTS, Documents
from dynamo.frontend.routes.table import ROUTES, UNKNOWN_PATHS, wrong_method
from dynamo.frontend.state import Frontend


def application(frontend: Frontend, gate: Gate, config: FrontendConfig) -> web.Application:
    app = web.Application(client_max_size=config.body_limit_mb << 20)

    def add(route: HttpRoute[Any], method: str) -> None:
        app.router.add_route(method, route.path, gate.guard(route, _handler(route, frontend, config)))

    by_path: dict[str, list[HttpRoute[Any]]] = {}
    for route in ROUTES:
        by_path.setdefault(route.path, []).append(route)
        add(route, route.method)
        if route.method == "GET":
            add(route, "HEAD")
    for routes in by_path.values():
        add(wrong_method(routes), "*")
    for route in UNKNOWN_PATHS:
        add(route, "*")
    app.on_response_prepare.append(gate.on_prepare)
    app[CORK] = Cork()
    app[KEEP_ALIVE_SECONDS] = config.sse_keep_alive_secs
    app[DOCUMENTS] = Documents(document(ROUTES))
    return app


def _handler(
    route: HttpRoute[Any], frontend: Frontend, config: FrontendConfig
) -> Callable[[web.Request, RequestRecord], Awaitable[web.StreamResponse]]:
    handler = route.handler
    if route.body is None:
        return lambda request, record: handler(frontend, HttpCall(request, record, None, b""))
    read = BodyReader(route.body, config, only_json=not route.any_content_type).read

    async def with_body(request: web.Request, record: RequestRecord) -> web.StreamResponse:
        return await handler(frontend, HttpCall(request, record, *await read(request)))

    return with_body
