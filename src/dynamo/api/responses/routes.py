"""/v1/responses: OpenAI's Responses API, served as a chat, and the stored responses."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

import msgspec
from aiohttp import web
from msgspec import Raw, structs

from dynamo.api.answers.http import json_response, page, stream_response
from dynamo.api.answers.numbered import events_of
from dynamo.api.host import Host
from dynamo.api.responses import conversations
from dynamo.api.responses.answers import DeletedResponse, InputTokens, ResponseObject, response_of
from dynamo.api.responses.background import BackgroundResponses, BackgroundRun
from dynamo.api.responses.event_log import EventLog, FollowedStream
from dynamo.api.responses.items import item_ids
from dynamo.api.responses.mcp_turn import McpTurn, mcp_turn, uses_mcp
from dynamo.api.responses.request import InputTokensRequest, ResponsesRequest
from dynamo.api.responses.stored_conversations import ConversationObject
from dynamo.api.responses.stored_responses import Turn
from dynamo.api.responses.stream import ResponsesStream, ResponsesWriter
from dynamo.api.responses.to_chat import hosted_tools, responses_to_chat, with_responses_names
from dynamo.api.responses.unfinished import UnfinishedRequest
from dynamo.api.route import INFERENCE_ERRORS, STORED_ERRORS, WRITTEN_ERRORS, Api, HttpCall, HttpRoute, inference
from dynamo.api.stream_names import open_stream
from dynamo.pipeline.custom_tools import UNENFORCED, lark_tools
from dynamo.pipeline.validate import validate_chat
from dynamo.protocols.answers import Page
from dynamo.protocols.card import ModelType
from dynamo.protocols.errors import InvalidRequest
from dynamo.runtime import Context
from dynamo.serving.conversation import Conversation
from dynamo.serving.request import require_type
from dynamo.serving.resumable import NamedRequest, ResumableStream, StreamName
from dynamo.serving.served_model import ServedModel


async def responses(host: Host, call: HttpCall[ResponsesRequest]) -> web.StreamResponse:
    store = host.state.of(call.owner).responses
    turn = await store.turn(call.body)
    body = structs.replace(call.body, input=turn.input, store=store.enabled and call.body.store is not False)
    mcp = await _use_mcp(host, call, body, turn) if uses_mcp(body) else None
    offered = mcp.request if mcp else body
    chat = responses_to_chat(offered, turn.past())
    call.warn("tools that run at OpenAI", hosted_tools(offered))
    call.warn(UNENFORCED, lark_tools(chat))
    if body.background:
        host.state.of(call.owner).background.check(body)
    try:
        validate_chat(chat)
        model = await host.models.arrive(chat.model)
        context, named = await open_stream(host, call, chat, turn.session)
        # The tools of MCP servers were read for this process; another one cannot go on with what they offered.
        unfinished = store.unfinished.shared and body.background and mcp is None
        if unfinished and named is None:
            context, named = _named(call, context)
        conversation = Conversation(model, chat, context, call.record, stream=named)
    except InvalidRequest as error:
        raise with_responses_names(error) from None
    handed_over = False
    try:
        try:
            await conversation.prepare()
        except InvalidRequest as error:
            raise with_responses_names(error) from None
        id = f"resp_{conversation.context.id().replace('-', '')}"
        if body.store:
            call.begins(conversation.context, id)
        if body.background:
            stream = ResponsesStream(body, id, conversation.model.name, conversation.created, mcp)
            kept = (
                UnfinishedRequest(id=id, body=Raw(call.raw_body), stream=named.name, created=conversation.created)
                if unfinished and named
                else None
            )
            run = BackgroundRun(body, turn, conversation, stream, call.record, kept)
            background = host.state.of(call.owner).background
            background.start(run)
            handed_over = True
            await asyncio.shield(run.stored)
            return await _follow(call, background, id, run.events) if body.stream else json_response(stream.response)
        if not body.stream:
            completion = conversation.completion(await conversation.collect())
            response = response_of(body, id, completion, mcp)
            await store.save(body, turn, response)
            return json_response(response)
        stream = ResponsesStream(body, id, conversation.model.name, conversation.created, mcp)
        writer = ResponsesWriter(stream, conversation.tokenizer, chat.top_logprobs or 0, events_of(conversation))

        async def save() -> None:
            await store.save(body, turn, stream.response)

        await conversation.send([writer])
        return await stream_response(call, writer, conversation, save)
    finally:
        if not handed_over:
            await conversation.close()


def _named(call: HttpCall[Any], context: Context) -> tuple[Context, ResumableStream]:
    """A name of its own for an answer that another process of this server may have to go on with."""
    name = StreamName(uuid.uuid4().hex, call.owner)
    asked = NamedRequest("", b"", int(time.time()), name.request_id)
    return context.renamed(name.request_id), ResumableStream(name, asked)


async def _use_mcp(host: Host, call: HttpCall[ResponsesRequest], body: ResponsesRequest, turn: Turn) -> McpTurn:
    """Before the model is asked: the tools of the servers that the request names, and the calls that it approves."""
    host.models.get(body.model)
    is_admin = host.may_administer(call.request)
    owner = uuid.uuid4().hex
    return await mcp_turn(body, turn.past(), host.mcp, is_admin=is_admin, owner=owner)


async def _follow(
    call: HttpCall[Any], background: BackgroundResponses, id: str, log: EventLog, after: int = -1
) -> web.StreamResponse:
    """Send the events after a number, those to come too; the response goes on if the client leaves."""
    events = log.follow(after)
    try:
        return await stream_response(call, FollowedStream(events), at_end=lambda: background.ended(id))
    finally:
        log.leave(events)


async def input_tokens(host: Host, call: HttpCall[InputTokensRequest]) -> web.StreamResponse:
    """Exact: the prompt is rendered and tokenized as for an answer."""
    turn = await host.state.of(call.owner).responses.turn(call.body)
    chat = responses_to_chat(structs.replace(call.body, input=turn.input).as_response(), turn.past())
    try:
        validate_chat(chat)
    except InvalidRequest as error:
        raise with_responses_names(error) from None
    model = host.models.get(chat.model)
    require_type(model, ModelType.Chat)
    return json_response(InputTokens(input_tokens=await model.tokenizing().count_tokens(chat)))


async def show_response(host: Host, call: HttpCall[None]) -> web.StreamResponse:
    state, id, query = host.state.of(call.owner), call.request.match_info["id"], call.request.query
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


async def delete_response(host: Host, call: HttpCall[None]) -> web.StreamResponse:
    state, id = host.state.of(call.owner), call.request.match_info["id"]
    await state.responses.delete(id)
    await state.background.stop(id)
    return json_response(DeletedResponse(id=id))


async def cancel_response(host: Host, call: HttpCall[None]) -> web.StreamResponse:
    state, id = host.state.of(call.owner), call.request.match_info["id"]
    cancelled = await state.responses.cancel(id)
    await state.background.stop(id)
    return json_response(cancelled.response)


async def input_items(host: Host, call: HttpCall[None]) -> web.StreamResponse:
    items = (await host.state.of(call.owner).responses.get(call.request.match_info["id"])).context
    return json_response(page(call.request, item_ids(items), items))


async def response_line(model: ServedModel, request: ResponsesRequest, context: Context) -> dict[str, Any]:
    for name in ("previous_response_id", "conversation"):
        if getattr(request, name) is not None:
            raise InvalidRequest.unsupported(name, "the lines of a batch do not share a state")
    request.store = False
    try:
        chat = responses_to_chat(request)
        validate_chat(chat)
        conversation = Conversation(model, chat, context)
        try:
            await conversation.prepare()
            completion = conversation.completion(await conversation.collect())
        finally:
            await conversation.close()
    except InvalidRequest as error:
        raise with_responses_names(error) from None
    built: dict[str, Any] = msgspec.to_builtins(response_of(request, f"resp_{uuid.uuid4().hex}", completion))
    return built


RESPONSES_API = Api(
    (
        inference(
            "/v1/responses", responses, ResponsesRequest, ResponseObject, "Answer, as OpenAI's Responses",
            endpoint="responses", limits=("max_output_tokens",), batched=response_line, streams=True,
        ),
        HttpRoute(
            "POST", "/v1/responses/input_tokens", input_tokens, InputTokensRequest, limited=True,
            summary="Count the tokens of a Responses request", answer=InputTokens, statuses=INFERENCE_ERRORS,
        ),
        HttpRoute(
            "GET", "/v1/responses/{id}", show_response,
            summary="A stored response", answer=ResponseObject, statuses=STORED_ERRORS,
        ),
        HttpRoute(
            "DELETE", "/v1/responses/{id}", delete_response,
            summary="Delete a stored response", answer=DeletedResponse, statuses=STORED_ERRORS,
        ),
        HttpRoute("POST", "/v1/responses/{id}/cancel", cancel_response),
        HttpRoute(
            "GET", "/v1/responses/{id}/input_items", input_items,
            summary="What a stored response answers to", answer=Page, statuses=STORED_ERRORS,
        ),
        HttpRoute(
            "POST", "/v1/conversations", conversations.create_conversation, conversations.CreateConversationRequest,
            summary="Start a conversation", answer=ConversationObject, statuses=WRITTEN_ERRORS,
        ),
        HttpRoute(
            "GET", "/v1/conversations/{id}", conversations.show_conversation,
            summary="A conversation", answer=ConversationObject, statuses=STORED_ERRORS,
        ),
        HttpRoute(
            "POST", "/v1/conversations/{id}",
            conversations.update_conversation, conversations.UpdateConversationRequest,
            summary="Replace a conversation's metadata", answer=ConversationObject, statuses=WRITTEN_ERRORS,
        ),
        HttpRoute(
            "DELETE", "/v1/conversations/{id}", conversations.delete_conversation,
            summary="Delete a conversation", answer=conversations.DeletedConversation, statuses=STORED_ERRORS,
        ),
        HttpRoute(
            "POST", "/v1/conversations/{id}/items", conversations.create_items, conversations.CreateItemsRequest,
            summary="Add items to a conversation", answer=Page, statuses=WRITTEN_ERRORS,
        ),
        HttpRoute(
            "GET", "/v1/conversations/{id}/items", conversations.list_items,
            summary="The items of a conversation", answer=Page, statuses=STORED_ERRORS,
        ),
        HttpRoute(
            "GET", "/v1/conversations/{id}/items/{item_id}", conversations.show_item,
            summary="One item of a conversation", statuses=STORED_ERRORS,
        ),
        HttpRoute(
            "DELETE", "/v1/conversations/{id}/items/{item_id}", conversations.delete_item,
            summary="Delete an item of a conversation", answer=ConversationObject, statuses=STORED_ERRORS,
        ),
    )
)  # fmt: skip
