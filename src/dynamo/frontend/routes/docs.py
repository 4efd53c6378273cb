"""GET /openapi.json and /docs: what this server offers, for programs and for people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from dynamo import __version__
from dynamo.frontend.openapi import ApiRoute, document, inference_routes
from dynamo.frontend.routes.admin import ClearedBlocks, ModelThresholds, ThresholdList, ThresholdRequest

if TYPE_CHECKING:
    from dynamo.frontend.app import Frontend

TITLE = "Dynamo"


def served_routes() -> tuple[ApiRoute, ...]:
    return (
        *inference_routes(),
        ApiRoute(method="get", path="/health", summary="Whether requests are taken", statuses=()),
        ApiRoute(method="get", path="/live", summary="Whether the process runs"),
        ApiRoute(
            method="post",
            path="/clear_kv_blocks",
            summary="Empty the caches of all workers",
            answer=ClearedBlocks,
            statuses=(401, 500),
        ),
        ApiRoute(
            method="get",
            path="/router/decisions",
            summary="The last choices of workers with their reasons (limit=, candidates=, model=)",
            statuses=(400, 401),
        ),
        ApiRoute(
            method="get",
            path="/busy_threshold",
            summary="From which load on workers are busy",
            answer=ThresholdList,
            statuses=(401,),
        ),
        ApiRoute(
            method="post",
            path="/busy_threshold",
            summary="Say from which load on a model's workers are busy",
            request=ThresholdRequest,
            answer=ModelThresholds,
            statuses=(400, 401, 404, 413, 415, 503),
        ),
    )


class Documents:
    """Both, made once."""

    def __init__(self) -> None:
        self.openapi = msgspec.json.encode(document(served_routes(), TITLE, __version__))
        self.page = (Path(__file__).parent / "docs.html").read_bytes()


async def openapi_json(frontend: Frontend, request: web.Request, request_id: str) -> web.StreamResponse:
    body = frontend.documents.openapi
    return web.Response(body=body, content_type="application/json", headers={"x-request-id": request_id})


async def docs(frontend: Frontend, request: web.Request, request_id: str) -> web.StreamResponse:
    headers = {"x-request-id": request_id, "Content-Security-Policy": "default-src 'self' 'unsafe-inline'"}
    return web.Response(body=frontend.documents.page, content_type="text/html", charset="utf-8", headers=headers)
