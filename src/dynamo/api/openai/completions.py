"""POST /v1/completions."""

from __future__ import annotations

from aiohttp import web

from dynamo.api.answers.http import json_response, stream_response
from dynamo.api.call import HttpCall
from dynamo.api.openai.chunks import text_chunks
from dynamo.api.openai.relay import RelayedStream
from dynamo.frontend.state import Frontend
from dynamo.pipeline.validate import validate_completion
from dynamo.protocols.completions import CompletionRequest
from dynamo.serving.completion import Completion


async def completions(frontend: Frontend, call: HttpCall[CompletionRequest]) -> web.StreamResponse:
    body = call.body
    validate_completion(body)
    model = frontend.models.get(body.model)
    completion = Completion(model, body, call.context(body), call.record, call.raw_body)
    try:
        await completion.prepare()
        if not body.stream:
            return json_response(await completion.answer())
        if completion.takes_text:
            relayed = RelayedStream(completion.head, completion.worker_name, call.request_id)
            await completion.relay(relayed)
            return await stream_response(call, relayed, completion)
        chunks, writers = text_chunks(completion, call.request_id)
        await completion.send(writers)
        return await stream_response(call, chunks, completion)
    finally:
        await completion.close()
