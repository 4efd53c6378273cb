"""The application: which handler answers which route, and what all of them share."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

from dynamo.frontend import headers
from dynamo.frontend.answers.answer import KEEP_ALIVE_SECONDS
from dynamo.frontend.answers.errors import ANTHROPIC_PATH, error_response
from dynamo.frontend.answers.sse import CORK, Cork
from dynamo.frontend.config import FrontendConfig
from dynamo.frontend.gate import Gate
from dynamo.frontend.measure.exchange import EXCHANGE
from dynamo.frontend.measure.loop_delay import LoopDelay
from dynamo.frontend.measure.overhead_metrics import overhead_metrics
from dynamo.frontend.measure.router_metrics import router_metrics
from dynamo.frontend.measure.worker_metrics import ready_gauge, worker_gauges
from dynamo.frontend.request_template import fill_body
from dynamo.frontend.routes import admin, listing
from dynamo.frontend.routes.chat import chat
from dynamo.frontend.routes.completions import completions
from dynamo.frontend.routes.decisions import decisions
from dynamo.frontend.routes.docs import Documents, docs, openapi_json
from dynamo.frontend.routes.embeddings import embeddings
from dynamo.frontend.routes.messages import count_tokens, messages
from dynamo.frontend.routes.responses import responses
from dynamo.frontend.siblings import Siblings
from dynamo.protocols.anthropic import CountTokensRequest, MessagesRequest
from dynamo.protocols.body import BodyDecoder
from dynamo.protocols.card import ModelType
from dynamo.protocols.errors import HttpError, InvalidRequest
from dynamo.protocols.openai_chat import ChatRequest
from dynamo.protocols.openai_completions import CompletionRequest
from dynamo.protocols.openai_embeddings import EmbeddingRequest
from dynamo.protocols.openai_responses import ResponsesRequest
from dynamo.runtime import Context
from dynamo.runtime.instruments import MetricFamily
from dynamo.serving.models import Models, ServedModel

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

    def __init__(
        self,
        models: Models,
        config: FrontendConfig,
        gate: Gate,
        siblings: Siblings | None,
        loop_delay: LoopDelay,
    ) -> None:
        self.models = models
        self.gate = gate
        self.bodies = Bodies()
        self.documents = Documents()
        self.ignore_unknown_fields = config.ignore_unknown_fields
        self._siblings = siblings
        self._loop_delay = loop_delay
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
        self._add(app, "/router/decisions", GET=decisions)
        self._add(app, "/metrics", GET=listing.metrics)
        app.router.add_route("*", r"/{path:[\s\S]*}", self._guarded(nothing_here))
        app.on_response_prepare.append(self.gate.on_prepare)
        app[CORK] = Cork()
        app[KEEP_ALIVE_SECONDS] = self._config.sse_keep_alive_secs
        return app

    def _add(self, app: web.Application, path: str, **handlers: Handler) -> None:
        for method, handler in handlers.items():
            app.router.add_route(method, path, self._guarded(handler))
        if "GET" in handlers:
            app.router.add_route("HEAD", path, self._guarded(handlers["GET"]))
        app.router.add_route("*", path, self._guarded(other_method(", ".join(sorted(handlers)))))

    def _guarded(self, handler: Handler) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        return self.gate.guard(functools.partial(handler, self))

    async def body(self, request: web.Request) -> bytes:
        kind = request.content_type
        if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
            raise HttpError(415, f"Content-Type must be application/json, not {kind}")
        limit = self._config.body_limit_mb << 20
        if (request.content_length or 0) > limit:
            raise web.HTTPRequestEntityTooLarge(limit, request.content_length or 0)
        body = await request.read() if request.content.is_eof() else await self._slow_body(request)
        template = self._config.request_template
        return fill_body(template, body, request.path) if template else body

    async def _slow_body(self, request: web.Request) -> bytes:
        """A body that is still under way may take its time, but not all of it."""
        try:
            async with asyncio.timeout(self._config.body_timeout or None):
                return await request.read()
        except TimeoutError:
            raise HttpError(408, f"The request's body did not come within {self._config.body_timeout:g} s") from None

    def model(self, name: str, kind: ModelType) -> ServedModel:
        model = self.models.get(name)
        if not model.card.type & kind:
            offers = ", ".join(model.card.type.names())
            raise InvalidRequest(f"The model '{name}' does not serve this route; it offers: {offers}.", "model")
        return model

    def context(self, request: web.Request) -> Context:
        exchange = request[EXCHANGE]
        return Context(
            headers.context_id(request.headers, exchange.request_id),
            headers.metadata(request.headers),
            traceparent=exchange.traceparent,
        )

    def snapshot(self) -> list[MetricFamily]:
        """The metrics of this process."""
        exchanges = self.gate.exchanges
        exchanges.settle()
        served = self.models.served()
        metrics = exchanges.metrics
        return [
            *metrics.snapshot(model.card for model in served),
            *metrics.stages.snapshot(exchanges.running),
            *self._loop_delay.snapshot(metrics.prefix),
            ready_gauge(metrics.prefix, self.models.readiness()),
            *worker_gauges(metrics.prefix, served, metrics.last_seen),
            *router_metrics(metrics.prefix, ((model.name, model.router) for model in served)),
            *overhead_metrics(self.models.router_id, served),
        ]

    async def set_thresholds(self, model: str, values: Mapping[str, int | float]) -> None:
        """In all processes on this port."""
        self.models.set_thresholds(model, values)
        if self._siblings:
            await self._siblings.compare()

    async def families(self) -> list[MetricFamily]:
        """The metrics of all processes on this port."""
        return self.snapshot() if self._siblings is None else await self._siblings.all_families()


def other_method(allowed: str) -> Handler:
    async def refuse(frontend: Frontend, request: web.Request, request_id: str) -> web.StreamResponse:
        error = HttpError(405, f"{request.method} is not allowed here; use {allowed}")
        answer = error_response(error, request_id, request.path)
        answer.headers["Allow"] = allowed
        return answer

    return refuse


async def nothing_here(frontend: Frontend, request: web.Request, request_id: str) -> web.StreamResponse:
    raise HttpError(404, f"Route not found: {request.method} {request.path}")
