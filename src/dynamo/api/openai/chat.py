"""POST /v1/chat/completions."""

from __future__ import annotations

from aiohttp import web

from dynamo.api.answers.http import json_response, stream_response
from dynamo.api.call import HttpCall
from dynamo.api.openai.chunks import Chunks, chat_chunks
from dynamo.api.openai.relay import RelayedStream
from dynamo.frontend.measure.trace_payload import CapturedPayload
from dynamo.frontend.state import Frontend
from dynamo.pipeline.custom_tools import UNENFORCED, lark_tools
from dynamo.pipeline.guidance import tool_finish_reason
from dynamo.pipeline.validate import validate_chat
from dynamo.protocols.chat import ChatRequest
from dynamo.serving.conversation import Conversation


async def chat(frontend: Frontend, call: HttpCall[ChatRequest]) -> web.StreamResponse:
    body = call.body
    payload: CapturedPayload | None = None
    if frontend.requests.payloads is not None:
        payload = frontend.requests.payloads.begin(body.model, call.raw_body, call.request.headers)
        call.record.payload = payload
    validate_chat(body)
    if body.tools:
        call.warn(UNENFORCED, lark_tools(body))
    model = frontend.models.get(body.model)
    conversation = Conversation(
        model, body, call.context(body), call.record, call.raw_body, tool_finish_reason=tool_finish_reason(body)
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
            stream = RelayedStream(conversation.head, conversation.worker_name, call.request_id)
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
