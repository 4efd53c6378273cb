"""The application: which handler answers which route, and what all of them share."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable

from aiohttp import web

from dynamo.frontend import admin, listing
from dynamo.frontend.chat import chat
from dynamo.frontend.completions import completions
from dynamo.frontend.config import FrontendConfig
from dynamo.frontend.docs import Documents, docs, openapi_json
from dynamo.frontend.embeddings import embeddings
from dynamo.frontend.errors import ANTHROPIC_PATH, error_response
from dynamo.frontend.messages import count_tokens, messages
from dynamo.frontend.models import Models, ServedModel
from dynamo.frontend.request_template import fill_body
from dynamo.frontend.responses import responses
from dynamo.protocols.anthropic import CountTokensRequest, MessagesRequest
from dynamo.protocols.body import BodyDecoder
from dynamo.protocols.card import ModelType
from dynamo.protocols.errors import DynamoException, HttpError, InvalidRequest, Unavailable, Unknown, to_wire
from dynamo.protocols.openai_chat import ChatRequest
from dynamo.protocols.openai_completions import CompletionRequest
from dynamo.protocols.openai_embeddings import EmbeddingRequest
from dynamo.protocols.openai_responses import ResponsesRequest
from dynamo.runtime import Context

log = logging.getLogger(__name__)

Handler = Callable[["Frontend", web.Request, str], Awaitable[web.StreamResponse]]


class Bodies:
    """How the body of each route is read."""

    def __init__(self) -> None:
        self.chat = BodyDecoder(ChatRequest)
        self.completion = BodyDecoder(CompletionRequest)
        self.embedding = BodyDecoder(EmbeddingRequest)
        self.responses = BodyDecoder(ResponsesRequest)
        self.messages = BodyDecoder(MessagesRequest)
        self.count_tokens = BodyDecoder(CountTokensRequest)
        self.threshold = BodyDecoder(admin.ThresholdRequest)


class Frontend:
    """What all handlers share."""

    def __init__(self, models: Models, config: FrontendConfig) -> None:
        self.models = models
        self.bodies = Bodies()
        self.documents = Documents()
        self.ignore_unknown_fields = config.ignore_unknown_fields
        self.draining = False
        self.running = 0
        self._idle = asyncio.Event()
        self._config = config

    def application(self) -> web.Application:
        app = web.Application(client_max_size=self._config.body_limit_mb << 20)
        self._add(app, "/v1/chat/completions", POST=chat)
        self._add(app, "/v1/completions", POST=completions)
        self._add(app, "/v1/embeddings", POST=embeddings)
        self._add(app, "/v1/responses", POST=responses)
        self._add(app, ANTHROPIC_PATH, POST=messages)
        self._add(app, f"{ANTHROPIC_PATH}/count_tokens", POST=count_tokens)
        self._add(app, "/v1/models", GET=listing.list_models)
        self._add(app, "/v1/models/{id:.+}", GET=listing.show_model)
        self._add(app, "/health", GET=listing.health)
        self._add(app, "/live", GET=listing.live)
        self._add(app, "/openapi.json", GET=openapi_json)
        self._add(app, "/docs", GET=docs)
        self._add(app, "/clear_kv_blocks", POST=admin.clear_kv_blocks)
        self._add(app, "/busy_threshold", GET=admin.get_thresholds, POST=admin.set_thresholds)
        app.router.add_route("*", "/{path:.*}", self._guarded(nothing_here))
        return app

    def _add(self, app: web.Application, path: str, **handlers: Handler) -> None:
        for method, handler in handlers.items():
            app.router.add_route(method, path, self._guarded(handler))
        if "GET" in handlers:
            app.router.add_route("HEAD", path, self._guarded(handlers["GET"]))
        app.router.add_route("*", path, self._guarded(other_method(", ".join(sorted(handlers)))))

    def _guarded(self, handler: Handler) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """Every failure becomes an answer, with the id under which the log tells more."""

        async def guarded(request: web.Request) -> web.StreamResponse:
            request_id = request.headers.get("x-request-id") or str(uuid.uuid4())
            self.running += 1
            try:
                return await handler(self, request, request_id)
            except DynamoException as error:
                status = to_wire(error)[2]
                level = logging.ERROR if status >= 500 else logging.INFO
                log.log(level, "%s %s failed (%d): %s [%s]", request.method, request.path, status, error, request_id)
                return error_response(error, request_id, request.path)
            except web.HTTPRequestEntityTooLarge:
                limit = self._config.body_limit_mb
                why = f"Request body exceeds the limit of {limit} MB set by DYN_HTTP_BODY_LIMIT_MB"
                return error_response(HttpError(413, why), request_id, request.path)
            except asyncio.CancelledError:
                log.info("%s %s: the client left [%s]", request.method, request.path, request_id)
                raise
            except Exception as error:
                log.exception("%s %s failed [%s]", request.method, request.path, request_id)
                return error_response(Unknown(f"internal error: {type(error).__name__}"), request_id, request.path)
            finally:
                self.running -= 1
                if not self.running:
                    self._idle.set()

        return guarded

    async def idle(self) -> None:
        """Wait until no request runs."""
        while self.running:
            self._idle.clear()
            await self._idle.wait()

    async def body(self, request: web.Request) -> bytes:
        if self.draining:
            raise Unavailable("The service is shutting down.")
        kind = request.content_type
        if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
            raise HttpError(415, f"Content-Type must be application/json, not {kind}")
        body = await request.read()
        template = self._config.request_template
        return fill_body(template, body, request.path) if template else body

    def model(self, name: str, kind: ModelType) -> ServedModel:
        model = self.models.get(name)
        if not model.card.type & kind:
            offers = ", ".join(model.card.type.names())
            raise InvalidRequest(f"The model '{name}' does not serve this route; it offers: {offers}.", "model")
        return model

    def context(self, request: web.Request, request_id: str) -> Context:
        prefix = "x-dynamo-meta-"
        metadata = {
            name.lower().removeprefix(prefix): value
            for name, value in request.headers.items()
            if name.lower().startswith(prefix)
        }
        return Context(str(uuid.uuid4()), metadata, traceparent=request.headers.get("traceparent"))


def other_method(allowed: str) -> Handler:
    async def refuse(frontend: Frontend, request: web.Request, request_id: str) -> web.StreamResponse:
        error = HttpError(405, f"{request.method} is not allowed here; use {allowed}")
        answer = error_response(error, request_id, request.path)
        answer.headers["Allow"] = allowed
        return answer

    return refuse


async def nothing_here(frontend: Frontend, request: web.Request, request_id: str) -> web.StreamResponse:
    raise HttpError(404, f"Route not found: {request.method} {request.path}")
