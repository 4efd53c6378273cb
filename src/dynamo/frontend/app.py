"""The web application: the route table, each route behind the gate."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from dynamo.api.answers.http import KEEP_ALIVE_SECONDS
from dynamo.api.answers.sse import CORK, Cork
from dynamo.api.route import AnyRoute, Api
from dynamo.frontend.config import FrontendConfig
from dynamo.frontend.gate import Gate
from dynamo.frontend.openapi import document
from dynamo.frontend.routes.pages import DOCUMENTS, PAGES, Documents
from dynamo.frontend.routes.table import UI_ROUTES, routes, unknown_paths, wrong_method
from dynamo.frontend.ui.pages import Pages


def application(gate: Gate, config: FrontendConfig, apis: Sequence[Api]) -> web.Application:
    app = web.Application(client_max_size=config.body_limit_mb << 20)

    def add(route: AnyRoute, method: str) -> None:
        app.router.add_route(method, route.path, gate.guard(route), expect_handler=_left_to_the_gate)

    by_path: dict[str, list[AnyRoute]] = {}
    documented = routes(apis)
    for route in (*documented, *UI_ROUTES) if config.ui else documented:
        by_path.setdefault(route.path, []).append(route)
        add(route, route.method)
        if route.method == "GET":
            add(route, "HEAD")
    for same_path in by_path.values():
        add(wrong_method(same_path), "*")
    for route in unknown_paths(apis):
        add(route, "*")
    app.on_response_prepare.append(gate.on_prepare)
    app[CORK] = Cork()
    app[KEEP_ALIVE_SECONDS] = config.sse_keep_alive_secs
    app[DOCUMENTS] = Documents(document(documented))
    app[PAGES] = Pages()
    return app


async def _left_to_the_gate(request: web.Request) -> None:
    """Clients are told to go on once their key is known to be good, and the library would tell them before."""
