"""POST /v1/completions."""

from __future__ import annotations

from aiohttp import web

from dynamo.frontend.answers.annotations import annotation_events
from dynamo.frontend.answers.chunks import Chunks, TextChoiceWriter
from dynamo.frontend.answers.http import json_response, stream_response
from dynamo.frontend.answers.relay import RelayedStream
from dynamo.frontend.answers.sse import EventStream
from dynamo.frontend.call import HttpCall
from dynamo.frontend.state import Frontend
from dynamo.pipeline.validate import validate_completion
from dynamo.protocols.openai_completions import CompletionRequest
from dynamo.serving.completion import Completion


async def completions(frontend: Frontend, call: HttpCall[CompletionRequest]) -> web.StreamResponse:
    asked = call.body
    validate_completion(asked)
    call.apply_headers(asked)
    model = frontend.models.get(asked.model)
    completion = Completion(model, asked, call.context(), call.exchange, call.raw_body)
    try:
        await completion.prepare()
        if not asked.stream:
            return json_response(await completion.answer())
        if completion.takes_text:
            relayed = RelayedStream(call.request_id)
            await completion.relay(relayed)
            return await stream_response(call, relayed, annotation_events(completion, None))
        chunks = _chunks(completion, call.request_id)
        writers = [
            TextChoiceWriter(chunks, index, echo=completion.echo(index), echoed=completion.echoed_logprobs(index))
            for index in range(completion.choices)
        ]
        await completion.send(writers)
        return await stream_response(call, chunks, annotation_events(completion, completion.prompts[0]))
    finally:
        await completion.close()


def _chunks(completion: Completion, request_id: str) -> Chunks:
    asked = completion.request
    return Chunks(
        EventStream(),
        id=completion.id,
        created=completion.created,
        model=completion.model.name,
        object="text_completion",
        choices=completion.choices,
        per_prompt=completion.n,
        options=asked.stream_options,
        tokenizer=completion.tokenizer,
        top_logprobs=asked.logprobs or 0,
        extra_fields=completion.extra_fields,
        request_id=request_id,
    )
