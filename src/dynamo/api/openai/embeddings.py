"""POST /v1/embeddings."""

from __future__ import annotations

from aiohttp import web

from dynamo.api.answers.http import json_response
from dynamo.api.call import HttpCall
from dynamo.frontend.state import Frontend
from dynamo.pipeline.validate import validate_embedding
from dynamo.protocols.embeddings import EmbeddingRequest
from dynamo.serving.embedding import Embeddings


async def embeddings(frontend: Frontend, call: HttpCall[EmbeddingRequest]) -> web.StreamResponse:
    body = call.body
    validate_embedding(body)
    served = Embeddings(frontend.models.get(body.model), body, call.context(body), call.record)
    try:
        return json_response(await served.answer())
    finally:
        await served.close()
