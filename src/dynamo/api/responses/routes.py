"""/v1/responses: OpenAI's Responses API, served as a chat, and the stored responses."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web
from msgspec import structs

from dynamo.api.answers.http import json_response, stream_response
from dynamo.api.answers.paging import page
from dynamo.api.answers.sse import EventStream
from dynamo.api.call import HttpCall
from dynamo.api.responses.answers import DeletedResponse, InputTokens, response_of
from dynamo.api.responses.background import BackgroundResponses, BackgroundRun
from dynamo.api.responses.event_log import EventLog, FollowedStream
from dynamo.api.responses.items import item_ids
from dynamo.api.responses.request import InputTokensRequest, ResponsesRequest
from dynamo.api.responses.stream import ResponsesStream, ResponsesWriter
from dynamo.api.responses.to_chat import hosted_tools, responses_to_chat, with_responses_names
from dynamo.frontend.state import Frontend
from dynamo.pipeline.custom_tools import UNENFORCED, lark_tools
from dynamo.pipeline.validate import validate_chat
from dynamo.protocols.card import ModelType
from dynamo.protocols.errors import InvalidRequest
from dynamo.serving.conversation import Conversation
from dynamo.serving.request import require_type


async def responses(frontend: Frontend, call: HttpCall[ResponsesRequest]) -> web.StreamResponse:
    store = frontend.state.of(call.owner).responses
    turn = await store.turn(call.body)
    body = structs.replace(call.body, input=turn.input, store=store.enabled and call.body.store is not False)
    chat = responses_to_chat(body, turn.past())
    call.warn("tools that run at OpenAI", hosted_tools(body))
    call.warn(UNENFORCED, lark_tools(chat))
    if body.background:
        frontend.state.of(call.owner).background.check(body)
    try:
        validate_chat(chat)
        conversation = Conversation(frontend.models.get(chat.model), chat, call.context(chat), call.record)
    except InvalidRequest as error:
        raise with_responses_names(error) from None
    handed_over = False
    try:
        try:
            await conversation.prepare()
        except InvalidRequest as error:
            raise with_responses_names(error) from None
        id = f"resp_{conversation.context.id().replace('-', '')}"
        if body.background:
            stream = ResponsesStream(body, id, conversation.model.name, conversation.created)
            run = BackgroundRun(body, turn, conversation, stream, call.record)
            background = frontend.state.of(call.owner).background
            background.start(run)
            handed_over = True
            await asyncio.shield(run.stored)
            return await _follow(call, background, id, run.events) if body.stream else json_response(stream.response)
        if not body.stream:
            completion = conversation.completion(await conversation.collect())
            response = response_of(body, id, completion)
            await store.save(body, turn, response)
            return json_response(response)
        stream = ResponsesStream(body, id, conversation.model.name, conversation.created)
        writer = ResponsesWriter(stream, conversation.tokenizer, chat.top_logprobs or 0, EventStream())

        async def save() -> None:
            await store.save(body, turn, stream.response)

        await conversation.send([writer])
        return await stream_response(call, writer, conversation, save)
    finally:
        if not handed_over:
            await conversation.close()


async def _follow(
    call: HttpCall[Any], background: BackgroundResponses, id: str, log: EventLog, after: int = -1
) -> web.StreamResponse:
    """Send the events after a number, those to come too; the response goes on if the client leaves."""
    events = log.follow(after)
    try:
        return await stream_response(call, FollowedStream(events), at_end=lambda: background.ended(id))
    finally:
        log.leave(events)


async def input_tokens(frontend: Frontend, call: HttpCall[InputTokensRequest]) -> web.StreamResponse:
    """Exact: the prompt is rendered and tokenized as for an answer."""
    turn = await frontend.state.of(call.owner).responses.turn(call.body)
    chat = responses_to_chat(structs.replace(call.body, input=turn.input).as_response(), turn.past())
    try:
        validate_chat(chat)
    except InvalidRequest as error:
        raise with_responses_names(error) from None
    model = frontend.models.get(chat.model)
    require_type(model, ModelType.Chat)
    if model.preprocessor is None:
        raise InvalidRequest(
            f"The model '{model.name}' reads text: its tokens are known to its worker only.", "model", "no_tokenizer"
        )
    return json_response(InputTokens(input_tokens=await model.preprocessor.count_tokens(chat)))


async def show_response(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
    state, id, query = frontend.state.of(call.owner), call.request.match_info["id"], call.request.query
    stored = await state.responses.get(id)
    if query.get("stream", "false").lower() not in ("true", "1"):
        return json_response(stored.response)
    log = state.background.events(id)
    if log is None:
        why = "only a response with `background` and `stream` is, for a while, and by the process that produces it"
        raise InvalidRequest.unsupported("stream", why)
    after = query.get("starting_after", "-1")
    if not after.removeprefix("-").isdecimal() or len(after) > 9:
        raise InvalidRequest.bad_value("starting_after", f"{after[:32]!r} is not the number of an event")
    return await _follow(call, state.background, id, log, int(after))


async def delete_response(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
    state, id = frontend.state.of(call.owner), call.request.match_info["id"]
    await state.responses.delete(id)
    await state.background.stop(id)
    return json_response(DeletedResponse(id=id))


async def cancel_response(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
    state, id = frontend.state.of(call.owner), call.request.match_info["id"]
    cancelled = await state.responses.cancel(id)
    await state.background.stop(id)
    return json_response(cancelled.response)


async def input_items(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
    items = (await frontend.state.of(call.owner).responses.get(call.request.match_info["id"])).context
    return json_response(page(call.request, item_ids(items), items))
