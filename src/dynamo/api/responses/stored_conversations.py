"""Conversations: items that requests add to, and read as the turns before theirs."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
from msgspec import Raw, Struct, structs

from dynamo.api.responses.items import find_item, item_ids, keep_items
from dynamo.api.responses.request import InputItem
from dynamo.protocols.errors import InvalidRequest, NotFound
from dynamo.serving.store.records import Records

KIND = "conversation"


class ConversationObject(Struct, kw_only=True):
    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: dict[str, str]


class StoredConversation(Struct):
    conversation: ConversationObject
    items: list[Raw]


Change = Callable[[StoredConversation], StoredConversation]
_stored = msgspec.json.Decoder(StoredConversation)


class Conversations:
    def __init__(self, records: Records, *, enabled: bool) -> None:
        self._records = records
        self._enabled = enabled

    async def create(self, items: Sequence[InputItem], metadata: dict[str, str]) -> ConversationObject:
        if not self._enabled:
            raise InvalidRequest("This server keeps no conversations.", code="unsupported_parameter")
        id = f"conv_{uuid.uuid4().hex}"
        made = ConversationObject(id=id, created_at=int(time.time()), metadata=metadata)
        stored = StoredConversation(made, keep_items(items, uuid.uuid4().hex))
        await self._records.put(KIND, id, msgspec.json.encode(stored))
        return made

    async def get(self, id: str) -> StoredConversation:
        body = await self._records.get(KIND, id)
        if body is None:
            raise _not_found(id)
        return _stored.decode(body)

    async def items(self, id: str) -> list[Raw]:
        return (await self.get(id)).items

    async def set_metadata(self, id: str, metadata: dict[str, str]) -> ConversationObject:
        def change(stored: StoredConversation) -> StoredConversation:
            return structs.replace(stored, conversation=structs.replace(stored.conversation, metadata=metadata))

        return (await self._update(id, change)).conversation

    async def delete(self, id: str) -> None:
        if not await self._records.delete(KIND, id):
            raise _not_found(id)

    async def add(self, id: str, items: Sequence[InputItem]) -> list[Raw]:
        """Returns the items as they are kept."""
        kept = keep_items(items, uuid.uuid4().hex)
        await self.extend(id, kept)
        return kept

    async def extend(self, id: str, items: Sequence[Raw]) -> None:
        await self._update(id, lambda stored: structs.replace(stored, items=[*stored.items, *items]))

    async def item(self, id: str, item_id: str) -> Raw:
        found = find_item(await self.items(id), item_id)
        if found is None:
            raise _no_item(id, item_id)
        return found

    async def delete_item(self, id: str, item_id: str) -> ConversationObject:
        def change(stored: StoredConversation) -> StoredConversation:
            ids = item_ids(stored.items)
            if item_id not in ids:
                raise _no_item(id, item_id)
            left = [item for item, each in zip(stored.items, ids, strict=True) if each != item_id]
            return structs.replace(stored, items=left)

        return (await self._update(id, change)).conversation

    async def _update(self, id: str, change: Change) -> StoredConversation:
        body = await self._records.update(KIND, id, lambda old: msgspec.json.encode(change(_stored.decode(old))))
        if body is None:
            raise _not_found(id)
        return _stored.decode(body)


def _not_found(id: str) -> NotFound:
    return NotFound(f"Conversation with id '{id[:128]}' not found.")


def _no_item(id: str, item_id: str) -> NotFound:
    return NotFound(f"Item with id '{item_id[:128]}' not found in conversation '{id[:128]}'.")
