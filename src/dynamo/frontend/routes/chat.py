"""POST /v1/chat/completions."""

from __future__ import annotations

from aiohttp import web

from dynamo.frontend.answers.annotations import annotation_events
from dynamo.frontend.answers.chunks import ChatChoiceWriter, Chunks
from dynamo.frontend.answers.http import json_response, stream_response
from dynamo.frontend.answers.relay import RelayedStream
from dynamo.frontend.answers.sse import EventStream
from dynamo.frontend.call import HttpCall
from dynamo.frontend.state import Frontend
from dynamo.pipeline.guidance import reason_of_calls
from dynamo.pipeline.validate import validate_chat
from dynamo.protocols.openai_chat import ChatRequest
from dynamo.serving.conversation import Conversation


async def chat(frontend: Frontend, call: HttpCall[ChatRequest]) -> web.StreamResponse:
    asked = call.body
    validate_chat(asked)
    call.apply_headers(asked)
    model = frontend.models.get(asked.model)
    conversation = Conversation(
        model, asked, call.context(), call.exchange, call.raw_body, reason_of_calls=reason_of_calls(asked)
    )
    try:
        await conversation.prepare()
        if not asked.stream:
            return json_response(await conversation.answer())
        stream: RelayedStream | Chunks
        if conversation.takes_text:
            stream = RelayedStream(call.request_id)
            await conversation.relay(stream)
        else:
            stream = _chunks(conversation, call.request_id)
            await conversation.send([ChatChoiceWriter(stream, index) for index in range(asked.n or 1)])
        return await stream_response(call, stream, annotation_events(conversation, conversation.prepared))
    finally:
        await conversation.close()


def _chunks(conversation: Conversation, request_id: str) -> Chunks:
    asked = conversation.request
    n = asked.n or 1
    return Chunks(
        EventStream(),
        id=conversation.id,
        created=conversation.created,
        model=conversation.model.name,
        object="chat.completion.chunk",
        choices=n,
        per_prompt=n,
        options=asked.stream_options,
        tokenizer=conversation.tokenizer,
        top_logprobs=asked.top_logprobs or 0,
        extra_fields=conversation.extra_fields,
        request_id=request_id,
    )
