"""/v1/conversations and their items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from aiohttp import web
from msgspec import Meta, Struct

from dynamo.api.answers.http import json_response, page
from dynamo.api.host import Host
from dynamo.api.responses.items import item_ids
from dynamo.api.responses.request import InputItem
from dynamo.api.responses.to_chat import check_items
from dynamo.api.route import HttpCall
from dynamo.protocols.answers import Page
from dynamo.protocols.fields import Metadata

NewItems = Annotated[list[InputItem], Meta(max_length=20)]


class CreateConversationRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    items: NewItems | None = None
    metadata: Metadata | None = None


class UpdateConversationRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    metadata: Metadata


class CreateItemsRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    items: NewItems


class DeletedConversation(Struct, kw_only=True):
    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: Literal[True] = True


async def create_conversation(host: Host, call: HttpCall[CreateConversationRequest]) -> web.StreamResponse:
    items = _check_items(call.body.items or ())
    return json_response(await host.state.of(call.owner).conversations.create(items, call.body.metadata or {}))


async def show_conversation(host: Host, call: HttpCall[None]) -> web.StreamResponse:
    return json_response((await host.state.of(call.owner).conversations.get(_id(call.request))).conversation)


async def update_conversation(host: Host, call: HttpCall[UpdateConversationRequest]) -> web.StreamResponse:
    return json_response(
        await host.state.of(call.owner).conversations.set_metadata(_id(call.request), call.body.metadata)
    )


async def delete_conversation(host: Host, call: HttpCall[None]) -> web.StreamResponse:
    id = _id(call.request)
    await host.state.of(call.owner).conversations.delete(id)
    return json_response(DeletedConversation(id=id))


async def create_items(host: Host, call: HttpCall[CreateItemsRequest]) -> web.StreamResponse:
    items = await host.state.of(call.owner).conversations.add(_id(call.request), _check_items(call.body.items))
    ids = item_ids(items)
    first, last = (ids[0], ids[-1]) if ids else (None, None)
    return json_response(Page(data=items, first_id=first, last_id=last, has_more=False))


async def list_items(host: Host, call: HttpCall[None]) -> web.StreamResponse:
    items = await host.state.of(call.owner).conversations.items(_id(call.request))
    return json_response(page(call.request, item_ids(items), items))


async def show_item(host: Host, call: HttpCall[None]) -> web.StreamResponse:
    item = await host.state.of(call.owner).conversations.item(_id(call.request), call.request.match_info["item_id"])
    return json_response(item)


async def delete_item(host: Host, call: HttpCall[None]) -> web.StreamResponse:
    item_id = call.request.match_info["item_id"]
    return json_response(await host.state.of(call.owner).conversations.delete_item(_id(call.request), item_id))


def _id(request: web.Request) -> str:
    return request.match_info["id"]


def _check_items(items: Sequence[InputItem]) -> Sequence[InputItem]:
    check_items(items, "items")
    return items
