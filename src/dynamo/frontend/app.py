"""The web application: the route table, each route behind the gate."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from dynamo.api.answers.http import KEEP_ALIVE_SECONDS
from dynamo.api.answers.sse import CORK, Cork
from dynamo.api.route import HttpRoute
from dynamo.frontend.config import FrontendConfig
from dynamo.frontend.gate import Gate
from dynamo.frontend.openapi import document
from dynamo.frontend.routes.docs import DOCUMENTS, Documents
from dynamo.frontend.routes.table import ROUTES, UI_ROUTES, UNKNOWN_PATHS, wrong_method
from dynamo.frontend.routes.ui import PAGES
from dynamo.frontend.ui.pages import Pages


def application(gate: Gate, config: FrontendConfig) -> web.Application:
    app = web.Application(client_max_size=config.body_limit_mb << 20)

    def add(route: HttpRoute[Any], method: str) -> None:
        app.router.add_route(method, route.path, gate.guard(route))

    by_path: dict[str, list[HttpRoute[Any]]] = {}
    for route in ROUTES + UI_ROUTES if config.ui else ROUTES:
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
    app[PAGES] = Pages()
    return app
