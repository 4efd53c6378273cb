"""GET /openapi.json and /docs: the API of this server, for programs and for people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from dynamo.api.call import HttpCall
from dynamo.frontend.state import Frontend


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
