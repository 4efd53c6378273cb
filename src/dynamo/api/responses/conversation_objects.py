"""/v1/conversations: the requests and the objects."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from dynamo.api.responses.request import InputItem
from dynamo.protocols.fields import Metadata

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
