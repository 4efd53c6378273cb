"""The routes. Each handler reads as the life of its request: parse, look up, prepare, generate, answer."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from dynamo.frontend.chunks import ChatChoice, Chunks, TextChoice
from dynamo.frontend.collect import Whole, chat_answer, text_answer
from dynamo.frontend.config import FrontendConfig
from dynamo.frontend.decisions import decisions
from dynamo.frontend.errors import error_response
from dynamo.frontend.generation import Generation
from dynamo.frontend.models import Models, ServedModel
from dynamo.frontend.relay import RelayedAnswer, RelayedStream
from dynamo.frontend.request_template import fill_body
from dynamo.frontend.sse import EventStream
from dynamo.pipeline.validate import validate_chat, validate_completion
from dynamo.protocols.body import BodyDecoder
from dynamo.protocols.card import ModelType
from dynamo.protocols.errors import DynamoException, HttpError, InvalidRequest, Unavailable, Unknown, to_wire
from dynamo.protocols.openai_answers import Model, ModelList
from dynamo.protocols.openai_chat import ChatRequest
from dynamo.protocols.openai_completions import CompletionRequest
from dynamo.runtime import Context
from dynamo.runtime.names import SCHEME

log = logging.getLogger(__name__)

Handler = Callable[["Frontend", web.Request, str], Awaitable[web.StreamResponse]]


class Frontend:
    """All HTTP handlers and what they share."""

    def __init__(self, models: Models, config: FrontendConfig) -> None:
        self.models = models
        self.draining = False
        self.running = 0
        self._idle = asyncio.Event()
        self._config = config
        self._chat = BodyDecoder(ChatRequest)
        self._completion = BodyDecoder(CompletionRequest)

    def application(self) -> web.Application:
        app = web.Application(client_max_size=self._config.body_limit_mb << 20)
        app.router.add_post("/v1/chat/completions", self._guarded(Frontend.chat))
        app.router.add_post("/v1/completions", self._guarded(Frontend.completions))
        app.router.add_get("/v1/models", self._guarded(Frontend.list_models))
        app.router.add_get("/v1/models/{id:.+}", self._guarded(Frontend.show_model))
        app.router.add_get("/router/decisions", self._guarded(decisions))
        app.router.add_get("/health", self._guarded(Frontend.health))
        app.router.add_get("/live", self._guarded(Frontend.live))
        app.router.add_route("*", "/{path:.*}", self._guarded(Frontend.nothing_here))
        return app

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
                return error_response(error, request_id)
            except web.HTTPRequestEntityTooLarge:
                limit = self._config.body_limit_mb
                why = f"Request body exceeds the limit of {limit} MB set by DYN_HTTP_BODY_LIMIT_MB"
                return error_response(HttpError(413, why), request_id)
            except asyncio.CancelledError:
                log.info("%s %s: the client left [%s]", request.method, request.path, request_id)
                raise
            except Exception as error:
                log.exception("%s %s failed [%s]", request.method, request.path, request_id)
                return error_response(Unknown(f"internal error: {type(error).__name__}"), request_id)
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

    async def chat(self, request: web.Request, request_id: str) -> web.StreamResponse:
        body = await self._body(request)
        asked = self._chat.decode(body, self._config.ignore_unknown_fields)
        validate_chat(asked)
        model = self._model(asked.model, ModelType.Chat)
        context = self._context(request, request_id)
        if model.preprocessor is None:
            return await self._relay(request, request_id, model, context, body, stream=bool(asked.stream))
        prepared = await model.preprocessor.chat(asked)
        preprocessor, n = model.preprocessor, asked.n or 1
        generation = Generation(model, context)
        tokenizer = preprocessor.model.tokenizer
        head: dict[str, Any] = {"id": f"chatcmpl-{context.id()}", "created": int(time.time()), "model": model.name}
        try:
            if not asked.stream:
                whole = Whole(n)
                for choice in whole.choices:
                    await generation.add(prepared, choice, preprocessor.parser(asked, prepared.prompt))
                await whole.done()
                return _json(chat_answer(whole, **head, tokenizer=tokenizer), request_id)
            chunks = self._chunks(asked, "chat.completion.chunk", n, head, request_id, tokenizer)
            for index in range(n):
                parser = preprocessor.parser(asked, prepared.prompt)
                await generation.add(prepared, ChatChoice(chunks, index), parser)
            return await self._stream(request, request_id, chunks)
        finally:
            await generation.close()

    async def completions(self, request: web.Request, request_id: str) -> web.StreamResponse:
        body = await self._body(request)
        asked = self._completion.decode(body, self._config.ignore_unknown_fields)
        validate_completion(asked)
        model = self._model(asked.model, ModelType.Completions)
        context = self._context(request, request_id)
        if model.preprocessor is None:
            return await self._relay(request, request_id, model, context, body, stream=bool(asked.stream))
        each = [one for one in await model.preprocessor.completion(asked) for _ in range(asked.n or 1)]
        tokenizer = model.preprocessor.model.tokenizer
        echo = [_echo(one.prompt, one.request.token_ids, tokenizer.decode) if asked.echo else "" for one in each]
        generation = Generation(model, context)
        head: dict[str, Any] = {"id": f"cmpl-{context.id()}", "created": int(time.time()), "model": model.name}
        try:
            if not asked.stream:
                whole = Whole(len(each))
                for one, choice in zip(each, whole.choices, strict=True):
                    await generation.add(one, choice)
                await whole.done()
                return _json(text_answer(whole, **head, tokenizer=tokenizer, echo=echo), request_id)
            chunks = self._chunks(asked, "text_completion", len(each), head, request_id, tokenizer)
            for index, one in enumerate(each):
                await generation.add(one, TextChoice(chunks, index, echo=echo[index]))
            return await self._stream(request, request_id, chunks)
        finally:
            await generation.close()

    async def _relay(
        self, request: web.Request, request_id: str, model: ServedModel, context: Context, body: bytes, *, stream: bool
    ) -> web.StreamResponse:
        asked = msgspec.json.decode(body)
        generation = Generation(model, context)
        try:
            if not stream:
                answer = RelayedAnswer()
                await generation.relay(asked, answer)
                return _json(await answer.answer(), request_id)
            head: dict[str, Any] = {"id": context.id(), "created": int(time.time()), "model": model.name}
            chunks = Chunks(EventStream(), **head, object="", choices=1, request_id=request_id)
            await generation.relay(asked, RelayedStream(chunks))
            return await self._stream(request, request_id, chunks)
        finally:
            await generation.close()

    def _chunks(
        self,
        asked: ChatRequest | CompletionRequest,
        object: str,
        choices: int,
        head: dict[str, Any],
        request_id: str,
        tokenizer: Any,
    ) -> Chunks:
        options = asked.stream_options
        return Chunks(
            EventStream(),
            **head,
            object=object,
            choices=choices,
            include_usage=bool(options and options.include_usage),
            continuous_usage=bool(options and options.continuous_usage_stats),
            tokenizer=tokenizer,
            request_id=request_id,
        )

    async def _stream(self, request: web.Request, request_id: str, chunks: Chunks) -> web.StreamResponse:
        events = chunks.events
        await events.begun()
        if chunks.error and not events.has_begun:
            raise chunks.error
        await events.open(request, {"x-request-id": request_id, "Cache-Control": "no-cache"})
        await events.ended
        return await events.close()

    async def list_models(self, request: web.Request, request_id: str) -> web.StreamResponse:
        models = [_describe(model) for model in sorted(self.models.served(), key=lambda model: model.name)]
        return _json(ModelList(data=models), request_id)

    async def show_model(self, request: web.Request, request_id: str) -> web.StreamResponse:
        return _json(_describe(self.models.get(request.match_info["id"])), request_id)

    async def health(self, request: web.Request, request_id: str) -> web.StreamResponse:
        if self.draining:
            answer = {"status": "not_ready", "stage": "draining", "message": "Service is not ready"}
            return _json(answer, request_id, status=503)
        instances = self.models.instances()
        endpoints = {f"{SCHEME}{one.namespace}.{one.component}.{one.endpoint}" for one in instances}
        return _json({"status": "healthy", "endpoints": sorted(endpoints), "instances": instances}, request_id)

    async def live(self, request: web.Request, request_id: str) -> web.StreamResponse:
        return _json({"status": "live", "message": "Service is live"}, request_id)

    async def nothing_here(self, request: web.Request, request_id: str) -> web.StreamResponse:
        raise HttpError(404, f"Route not found: {request.method} {request.path}")

    async def _body(self, request: web.Request) -> bytes:
        if self.draining:
            raise Unavailable("The service is shutting down.")
        kind = request.content_type
        if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
            raise HttpError(415, f"Content-Type must be application/json, not {kind}")
        body = await request.read()
        return fill_body(self._config.request_template, body) if self._config.request_template else body

    def _model(self, name: str, kind: ModelType) -> ServedModel:
        model = self.models.get(name)
        if not model.card.type & kind:
            offers = ", ".join(model.card.type.names())
            raise InvalidRequest(f"The model '{name}' does not serve this route; it offers: {offers}.", "model")
        return model

    def _context(self, request: web.Request, request_id: str) -> Context:
        prefix = "x-dynamo-meta-"
        metadata = {
            name.lower().removeprefix(prefix): value
            for name, value in request.headers.items()
            if name.lower().startswith(prefix)
        }
        return Context(str(uuid.uuid4()), metadata, traceparent=request.headers.get("traceparent"))


def _json(answer: object, request_id: str, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(answer),
        status=status,
        content_type="application/json",
        headers={"x-request-id": request_id},
    )


def _describe(model: ServedModel) -> Model:
    answer = Model(id=model.name, created=model.created, owned_by="dynamo")
    if model.card.context_length:
        answer.max_model_len = model.card.context_length
    return answer


def _echo(prompt: str | None, ids: list[int], decode: Callable[[list[int]], str]) -> str:
    return decode(ids) if prompt is None else prompt
