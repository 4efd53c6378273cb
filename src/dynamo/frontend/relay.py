"""Workers that take text speak OpenAI themselves: their chunks are passed on, or folded into one answer."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from dynamo.frontend.chunks import Chunks
from dynamo.frontend.sse import DONE
from dynamo.protocols.errors import DynamoException, ProtocolError


class RelayedStream:
    """Each chunk of the worker becomes an event."""

    def __init__(self, chunks: Chunks) -> None:
        self._chunks = chunks

    def tokens(self, ids: list[int]) -> None:
        self.fail(ProtocolError("a worker that was registered as taking text answered with token ids"))

    def item(self, value: Any) -> None:
        self._chunks.events.write(b"data: " + msgspec.json.encode(value) + b"\n\n")

    def end(self) -> None:
        self._chunks.events.end(DONE)

    def fail(self, error: DynamoException) -> None:
        self._chunks.failed(error)


class RelayedAnswer:
    """The worker's chunks, folded by choice; what a whole answer has at its root is kept from the chunks."""

    def __init__(self) -> None:
        self._root: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def tokens(self, ids: list[int]) -> None:
        self.fail(ProtocolError("a worker that was registered as taking text answered with token ids"))

    def item(self, value: Any) -> None:
        if not isinstance(value, dict):
            self.fail(ProtocolError(f"a worker answered with a {type(value).__name__} where a chunk belongs"))
            return
        self._root |= {key: field for key, field in value.items() if key != "choices" and field is not None}
        for part in value.get("choices") or ():
            if isinstance(part, dict):
                fold(self._choices.setdefault(part.get("index") or 0, {}), part)

    def end(self) -> None:
        if not self._done.done():
            self._done.set_result(None)

    def fail(self, error: DynamoException) -> None:
        if not self._done.done():
            self._done.set_exception(error)

    async def answer(self) -> dict[str, Any]:
        await self._done
        root = {**self._root, "choices": [self._choices[index] for index in sorted(self._choices)]}
        if root.get("object") == "chat.completion.chunk":
            root["object"] = "chat.completion"
        root.setdefault("usage", {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0})
        return root


def fold(choice: dict[str, Any], part: dict[str, Any]) -> None:
    """Add one chunk's part to what is known of a choice."""
    choice.setdefault("index", part.get("index") or 0)
    if "text" in part:
        choice["text"] = choice.get("text", "") + (part["text"] or "")
    elif "message" in part:
        choice["message"] = part["message"]
    else:
        message = choice.setdefault("message", {"role": "assistant", "content": ""})
        fold_delta(message, part.get("delta") or {})
    choice["finish_reason"] = part.get("finish_reason") or choice.get("finish_reason")
    choice.setdefault("logprobs", None)


def fold_delta(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for key, value in delta.items():
        if key == "tool_calls":
            for call in value or ():
                fold_call(message.setdefault("tool_calls", []), call)
        elif key == "role":
            message["role"] = value or message["role"]
        elif isinstance(value, str):
            message[key] = (message.get(key) or "") + value
        elif value is not None:
            message[key] = value


def fold_call(calls: list[dict[str, Any]], part: dict[str, Any]) -> None:
    index = part.get("index") or 0
    while len(calls) <= index:
        calls.append({"id": None, "type": "function", "function": {"name": "", "arguments": ""}})
    call = calls[index]
    call["id"] = part.get("id") or call["id"]
    function = part.get("function") or {}
    call["function"]["name"] += function.get("name") or ""
    call["function"]["arguments"] += function.get("arguments") or ""
