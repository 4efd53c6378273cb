"""/v1/conversations: the requests and the objects."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from dynamo.api.responses.request import InputItem

Metadata = Annotated[dict[str, Annotated[str, Meta(max_length=512)]], Meta(max_length=16)]
NewItems = Annotated[list[InputItem], Meta(max_length=20)]


class ConversationObject(Struct, kw_only=True):
    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: dict[str, str]


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


class Page(Struct, kw_only=True):
    """A part of a list; `last_id` is the `after` of the next one."""

    object: Literal["list"] = "list"
    data: list[Any]
    first_id: str | None
    last_id: str | None
    has_more: bool
