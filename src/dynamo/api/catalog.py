"""All APIs over HTTP. KServe's is gRPC and has a server of its own: `dynamo.api.kserve`."""

from __future__ import annotations

from collections.abc import Sequence

from dynamo.api.anthropic.routes import ANTHROPIC_API
from dynamo.api.ollama.routes import OLLAMA_API
from dynamo.api.openai.routes import OPENAI_API
from dynamo.api.responses.routes import RESPONSES_API
from dynamo.api.route import Api
from dynamo.api.streams import streams_api
from dynamo.protocols.body import BodyDecoder
from dynamo.serving.batches.line import LineEndpoint

_MODELS: tuple[Api, ...] = (OPENAI_API, RESPONSES_API, ANTHROPIC_API, OLLAMA_API)
APIS: tuple[Api, ...] = (*_MODELS, streams_api(_MODELS))


def line_endpoints(apis: Sequence[Api] = APIS) -> dict[str, LineEndpoint]:
    """The routes whose requests may be lines of a batch, by path."""
    return {
        route.path: LineEndpoint(BodyDecoder(route.body), route.batched, route.limits)
        for api in apis
        for route in api.routes
        if route.body and route.batched
    }
