"""POST /v1/chat/completions."""

from __future__ import annotations

from aiohttp import web

from dynamo.frontend.answers.chunks import Chunks, chat_chunks
from dynamo.frontend.answers.http import json_response, stream_response
from dynamo.frontend.answers.relay import RelayedStream
from dynamo.frontend.call import HttpCall
from dynamo.frontend.state import Frontend
from dynamo.pipeline.custom_tools import UNENFORCED, lark_tools
from dynamo.pipeline.guidance import tool_finish_reason
from dynamo.pipeline.validate import validate_chat
from dynamo.protocols.openai_chat import ChatRequest
from dynamo.serving.conversation import Conversation


async def chat(frontend: Frontend, call: HttpCall[ChatRequest]) -> web.StreamResponse:
    body = call.body
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
            return json_response(await conversation.answer())
        stream: RelayedStream | Chunks
        if conversation.prepared is None:
            stream = RelayedStream(conversation.head, conversation.worker_name, call.request_id)
            await conversation.relay(stream)
        else:
            stream, writers = chat_chunks(conversation, call.request_id)
            await conversation.send(writers)
        return await stream_response(call, stream, conversation)
    finally:
        await conversation.close()
