"""POST /v1/chat/completions, /v1/completions and /v1/embeddings."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from dynamo.api.answers.http import json_response, stream_response
from dynamo.api.answers.numbered import events_of
from dynamo.api.host import Host
from dynamo.api.openai.chunks import Chunks, chat_chunks, text_chunks
from dynamo.api.openai.relay import RelayedStream
from dynamo.api.openai.trace_payload import CapturedPayload
from dynamo.api.route import HttpCall
from dynamo.api.stream_names import open_stream
from dynamo.pipeline.custom_tools import UNENFORCED, lark_tools
from dynamo.pipeline.guidance import tool_finish_reason
from dynamo.pipeline.validate import validate_chat, validate_completion, validate_embedding
from dynamo.protocols.chat import ChatRequest
from dynamo.protocols.completions import CompletionRequest
from dynamo.protocols.embeddings import EmbeddingRequest
from dynamo.runtime import Context
from dynamo.serving.ask import ask
from dynamo.serving.completion import Completion
from dynamo.serving.conversation import Conversation
from dynamo.serving.embedding import Embeddings
from dynamo.serving.served_model import ServedModel


async def chat(host: Host, call: HttpCall[ChatRequest]) -> web.StreamResponse:
    body = call.body
    payload: CapturedPayload | None = None
    if host.payloads is not None:
        payload = host.payloads.begin(body.model, call.raw_body, call.request.headers)
        call.record.payload = payload
    validate_chat(body)
    if body.tools:
        call.warn(UNENFORCED, lark_tools(body))
    model = await host.models.arrive(body.model)
    context, named = await open_stream(host, call, body)
    conversation = Conversation(
        model, body, context, call.record, call.raw_body, tool_finish_reason=tool_finish_reason(body), stream=named
    )
    try:
        await conversation.prepare()
        if not body.stream:
            answer = await conversation.answer()
            if payload is not None:
                payload.answered(answer)
            return json_response(answer)
        stream: RelayedStream | Chunks
        if conversation.prepared is None:
            stream = RelayedStream(
                conversation.head, conversation.worker_name, call.request_id, events_of(conversation)
            )
            await conversation.relay(stream)
            if payload is not None:
                payload.relayed()
        else:
            stream, writers = chat_chunks(conversation, call.request_id)
            await conversation.send(writers if payload is None else payload.collecting(conversation, writers))
        response = await stream_response(call, stream, conversation)
        if payload is not None and stream.error is None:
            await payload.collected()
        return response
    finally:
        await conversation.close()


async def completions(host: Host, call: HttpCall[CompletionRequest]) -> web.StreamResponse:
    body = call.body
    validate_completion(body)
    model = await host.models.arrive(body.model)
    context, named = await open_stream(host, call, body)
    completion = Completion(model, body, context, call.record, call.raw_body, named)
    try:
        await completion.prepare()
        if not body.stream:
            return json_response(await completion.answer())
        if completion.takes_text:
            relayed = RelayedStream(completion.head, completion.worker_name, call.request_id, events_of(completion))
            await completion.relay(relayed)
            return await stream_response(call, relayed, completion)
        chunks, writers = text_chunks(completion, call.request_id)
        await completion.send(writers)
        return await stream_response(call, chunks, completion)
    finally:
        await completion.close()


async def embeddings(host: Host, call: HttpCall[EmbeddingRequest]) -> web.StreamResponse:
    body = call.body
    validate_embedding(body)
    inference = Embeddings(await host.models.arrive(body.model), body, call.context(body), call.record)
    try:
        return json_response(await inference.answer())
    finally:
        await inference.close()


async def text_line(model: ServedModel, request: ChatRequest | CompletionRequest, context: Context) -> dict[str, Any]:
    return (await ask(model, request, context=context)).body


async def embedding_line(model: ServedModel, request: EmbeddingRequest, context: Context) -> dict[str, Any]:
    validate_embedding(request)
    inference = Embeddings(model, request, context)
    try:
        answer: dict[str, Any] = msgspec.to_builtins(await inference.answer())
    finally:
        await inference.close()
    return answer
