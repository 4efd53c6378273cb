"""GET /, /fleet and /ui/VERSION/NAME: the pages and the files that they load."""

from __future__ import annotations

from aiohttp import web

from dynamo.api.call import HttpCall
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
