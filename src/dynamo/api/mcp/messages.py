"""What an MCP server says, and the limits within which it is believed."""

from __future__ import annotations

import hashlib
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from dynamo.protocols.fields import JsonObject

MAX_MESSAGE = 1 << 20
"""Bytes of one message."""
MAX_TOOLS = 128
"""Tools of one server."""
MAX_PAGES = 16
SECONDS = 30.0
"""How long a server may take for one answer."""
VERSION = "2025-06-18"


class McpError(Exception):
    """Its message says in one line what the server did."""


class McpTool(Struct, kw_only=True, rename="camel", omit_defaults=True):
    name: str
    description: str | None = None
    input_schema: JsonObject = {}

    def digest(self) -> str:
        """Equal for two definitions exactly when a user saw the same."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()[:32]


class ToolPage(Struct, rename="camel"):
    tools: list[McpTool]
    next_cursor: str | None = None


class Content(Struct, rename="camel"):
    type: str
    text: str | None = None


class ToolResult(Struct, rename="camel"):
    content: list[Content] = []
    is_error: bool = False
    structured_content: Any = None

    def text(self) -> str:
        """What a model reads of it: the texts, and the kinds of what else there is."""
        parts = [part.text if part.text is not None else f"[{part.type[:32]}]" for part in self.content]
        if not parts and self.structured_content is not None:
            return msgspec.json.encode(self.structured_content).decode()
        return "\n".join(parts)


class Transport(Protocol):
    async def exchange(self, message: JsonObject) -> JsonObject:
        """The answer to a request; raises McpError."""

    async def notify(self, message: JsonObject) -> None: ...


class RpcMessage(Struct):
    """A message of JSON-RPC, as far as it is looked at."""

    id: int | str | None = None
    method: str | None = None
    result: Any = None
    error: Any = None


_decoder = msgspec.json.Decoder(RpcMessage)


def decode(raw: bytes | str) -> RpcMessage:
    """Raises McpError."""
    try:
        return _decoder.decode(raw)
    except (ValueError, RecursionError):
        raise McpError("it sent what is no message of JSON-RPC") from None


def answer_to(asked: RpcMessage) -> JsonObject:
    """What the server gets for a request of its own: nothing is done for it."""
    if asked.method == "ping":
        return {"jsonrpc": "2.0", "id": asked.id, "result": {}}
    return {"jsonrpc": "2.0", "id": asked.id, "error": {"code": -32601, "message": "not offered"}}
