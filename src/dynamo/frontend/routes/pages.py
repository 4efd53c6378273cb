"""What people open in a browser: the pages with their files, and the API of this server, also for programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from dynamo.api.route import HttpCall
from dynamo.frontend.state import Frontend
from dynamo.frontend.ui.pages import Pages
from dynamo.protocols.errors import HttpError

PAGES = web.AppKey("pages", Pages)
REVALIDATE = "no-cache"
FOR_EVER = "private, max-age=31536000, immutable"


async def chat_page(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
    return call.request.app[PAGES].chat.answer(call.request, REVALIDATE)


async def fleet_page(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
    return call.request.app[PAGES].fleet.answer(call.request, REVALIDATE)


async def file(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
    pages, place = call.request.app[PAGES], call.request.match_info
    found = pages.files.get(place["name"])
    if found is None:
        raise HttpError(404, f"Route not found: {call.request.method} {call.request.path}")
    # The page may come from a server of another version beside this one; it works with these files meanwhile.
    return found.answer(call.request, FOR_EVER if place["version"] == pages.version else REVALIDATE)


class Documents:
    """The OpenAPI document and the page that shows it, built once."""

    def __init__(self, openapi: dict[str, Any]) -> None:
        self.openapi = msgspec.json.encode(openapi)
        self.page = (Path(__file__).parent / "docs.html").read_bytes()


DOCUMENTS = web.AppKey("documents", Documents)


async def openapi_json(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
    return web.Response(body=call.request.app[DOCUMENTS].openapi, content_type="application/json")


async def docs(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
    page = call.request.app[DOCUMENTS].page
    headers = {"Content-Security-Policy": "default-src 'self' 'unsafe-inline'"}
    return web.Response(body=page, content_type="text/html", charset="utf-8", headers=headers)
