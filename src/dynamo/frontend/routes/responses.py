"""POST /v1/responses: OpenAI's Responses API, served as a chat."""

from __future__ import annotations

from aiohttp import web

from dynamo.frontend.answers.http import annotation_events, json_response, stream_response
from dynamo.frontend.answers.responses_stream import ResponsesStream, ResponsesWriter
from dynamo.frontend.call import HttpCall
from dynamo.frontend.state import Frontend
from dynamo.pipeline.responses_to_chat import responses_to_chat, with_responses_names
from dynamo.pipeline.validate import validate_chat
from dynamo.protocols.errors import InvalidRequest
from dynamo.protocols.openai_responses import ResponsesRequest
from dynamo.protocols.responses_answers import response_of
from dynamo.serving.conversation import Conversation


async def responses(frontend: Frontend, call: HttpCall[ResponsesRequest]) -> web.StreamResponse:
    body = call.body
    chat = responses_to_chat(body)
    try:
        validate_chat(chat)
        call.apply_headers(chat)
        conversation = Conversation(frontend.models.get(chat.model), chat, call.context(), call.record)
    except InvalidRequest as error:
        raise with_responses_names(error) from None
    try:
        try:
            await conversation.prepare()
        except InvalidRequest as error:
            raise with_responses_names(error) from None
        id = f"resp_{conversation.context.id().replace('-', '')}"
        if not body.stream:
            completion = conversation.completion(await conversation.collect())
            return json_response(response_of(body, id, completion))
        stream = ResponsesStream(body, id, conversation.model.name, conversation.created)
        writer = ResponsesWriter(stream, conversation.tokenizer, chat.top_logprobs or 0)
        await conversation.send([writer])
        return await stream_response(call, writer, annotation_events(conversation, conversation.prepared))
    finally:
        await conversation.close()
