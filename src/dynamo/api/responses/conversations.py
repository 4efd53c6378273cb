"""/v1/conversations and their items."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from dynamo.api.answers.http import json_response
from dynamo.api.answers.paging import page
from dynamo.api.call import HttpCall
from dynamo.api.responses.conversation_objects import (
    CreateConversationRequest,
    CreateItemsRequest,
    DeletedConversation,
    UpdateConversationRequest,
)
from dynamo.api.responses.items import item_ids
from dynamo.api.responses.request import InputItem
from dynamo.api.responses.to_chat import check_items
from dynamo.frontend.state import Frontend
from dynamo.protocols.answers import Page


async def create_conversation(frontend: Frontend, call: HttpCall[CreateConversationRequest]) -> web.StreamResponse:
    items = _checked(call.body.items or ())
    return json_response(await frontend.state.of(call.owner).conversations.create(items, call.body.metadata or {}))


async def show_conversation(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
    return json_response((await frontend.state.of(call.owner).conversations.get(_id(call.request))).conversation)


async def update_conversation(frontend: Frontend, call: HttpCall[UpdateConversationRequest]) -> web.StreamResponse:
    return json_response(
        await frontend.state.of(call.owner).conversations.set_metadata(_id(call.request), call.body.metadata)
    )


async def delete_conversation(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
    id = _id(call.request)
    await frontend.state.of(call.owner).conversations.delete(id)
    return json_response(DeletedConversation(id=id))


async def create_items(frontend: Frontend, call: HttpCall[CreateItemsRequest]) -> web.StreamResponse:
    items = await frontend.state.of(call.owner).conversations.add(_id(call.request), _checked(call.body.items))
    ids = item_ids(items)
    first, last = (ids[0], ids[-1]) if ids else (None, None)
    return json_response(Page(data=items, first_id=first, last_id=last, has_more=False))


async def list_items(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
    items = await frontend.state.of(call.owner).conversations.items(_id(call.request))
    return json_response(page(call.request, item_ids(items), items))


async def show_item(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
    item = await frontend.state.of(call.owner).conversations.item(_id(call.request), call.request.match_info["item_id"])
    return json_response(item)


async def delete_item(frontend: Frontend, call: HttpCall[None]) -> web.StreamResponse:
    item_id = call.request.match_info["item_id"]
    return json_response(await frontend.state.of(call.owner).conversations.delete_item(_id(call.request), item_id))


def _id(request: web.Request) -> str:
    return request.match_info["id"]


def _checked(items: Sequence[InputItem]) -> Sequence[InputItem]:
    check_items(items, "items")
    return items
