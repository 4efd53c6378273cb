"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from dynamo.frontend.answers.answer import json_response, stream_response
from dynamo.frontend.answers.chunks import ChatChoiceWriter, Chunks
from dynamo.frontend.answers.nvext import annotation_events
from dynamo.frontend.answers.sse import EventStream
from dynamo.pipeline.guidance import tool_finish_reason
from dynamo.pipeline.validate import validate_chat
from dynamo.serving.conversation import Conversation
from dynamo.serving.relay import relay_response

if TYPE_CHECKING:
    from dynamo.frontend.app import Frontend


async def chat(frontend: Frontend, request: web.Request, request_id: str) -> web.StreamResponse:
    body = await frontend.body(request)
    asked = frontend.bodies.chat.decode(body, frontend.ignore_unknown_fields)
    validate_chat(asked)
    talk = Conversation(frontend, request, request_id, asked)
    talk.reason_of_calls = tool_finish_reason(asked)
    try:
        await talk.prepare()
        if talk.prepared is None:
            raw = msgspec.json.decode(body)
            if asked.nvext is not None:
                raw["nvext"] = msgspec.to_builtins(asked.nvext)
            before = annotation_events(asked.nvext, talk.context.id())
            return await relay_response(request, request_id, talk.generation, raw, before)
        id = f"chatcmpl-{talk.context.id()}"
        if not asked.stream:
            return json_response((await talk.whole(id))[0], request_id)
        n = asked.n or 1
        chunks = Chunks(
            EventStream(),
            id=id,
            created=talk.created,
            model=talk.model.name,
            object="chat.completion.chunk",
            choices=n,
            per_prompt=n,
            options=asked.stream_options,
            tokenizer=talk.tokenizer,
            top_logprobs=asked.top_logprobs or 0,
            extras=talk.extras,
            request_id=request_id,
        )
        await talk.send([ChatChoiceWriter(chunks, index) for index in range(n)])
        before = annotation_events(asked.nvext, talk.context.id(), talk.prepared)
        return await stream_response(request, request_id, chunks, before)
    finally:
        await talk.close()
