"""The items of a conversation as they are kept: JSON, each with an id and a type."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from dynamo.api.responses.request import InputItem

_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "local_shell_call": "lsh",
    "local_shell_call_output": "lsho",
    "shell_call": "sh",
    "shell_call_output": "sho",
    "apply_patch_call": "apc",
    "apply_patch_call_output": "apco",
    "mcp_approval_request": "mcpr",
    "mcp_approval_response": "mcpa",
    "mcp_call": "mcp",
    "mcp_list_tools": "mcpl",
}
_PARTS = {"assistant": "output_text"}

_item = msgspec.json.Decoder(InputItem)


class KeptItem(Struct):
    """The field by which a stored item is found."""

    id: str


_kept = msgspec.json.Decoder(KeptItem)


def read_items(items: Iterable[Raw]) -> list[InputItem]:
    return [_item.decode(item) for item in items]


def keep_items(input: str | Sequence[InputItem], owner: str) -> list[Raw]:
    """`owner` is part of the ids that items without one get, so that the items of a response lead to it."""
    items = [InputItem(role="user", content=input)] if isinstance(input, str) else input
    return [Raw(msgspec.json.encode(_kept_item(item, owner))) for item in items]


def find_item(items: Iterable[Raw], id: str) -> Raw | None:
    return next((item for item in items if _kept.decode(item).id == id), None)


def item_ids(items: Iterable[Raw]) -> list[str]:
    return [_kept.decode(item).id for item in items]


def _kept_item(item: InputItem, owner: str) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(item)
    kind = fields.setdefault("type", "message")
    if kind == "message":
        if isinstance(item.content, str):
            text = {"type": _PARTS.get(item.role or "user", "input_text"), "text": item.content}
            fields["content"] = [{**text, "annotations": []} if item.role == "assistant" else text]
        fields["status"] = "completed"
    elif kind.endswith(("_call", "_call_output")):
        fields.setdefault("status", "completed")
    elif kind == "reasoning":
        fields.setdefault("summary", [])
    fields.setdefault("id", f"{_PREFIXES.get(kind, 'item')}_{owner}_{uuid.uuid4().hex[:12]}")
    return fields
