"""Workers that take text speak OpenAI themselves: their chunks are passed on, folded into one answer, or read."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import msgspec
from aiohttp import web
from msgspec import Struct

from dynamo.frontend.answers.answer import json_response, stream_response
from dynamo.frontend.answers.chunks import Chunks
from dynamo.frontend.answers.sse import DONE, EventStream
from dynamo.pipeline.choice import ChoiceSink, Finish
from dynamo.pipeline.parse import new_call_id
from dynamo.protocols.engine import Usage
from dynamo.protocols.errors import DynamoException, ProtocolError
from dynamo.serving.generation import Generation


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


class RelayedChoice:
    """Tells a choice what the chat chunks of a worker say: for routes whose answers have another shape."""

    def __init__(self, choice: ChoiceSink) -> None:
        self._choice = choice
        self._usage = Usage()
        self._reason = "stop"
        self._call = -1
        self._done = False
        choice.begin(lambda: self._usage)

    def tokens(self, ids: list[int]) -> None:
        self.fail(ProtocolError("a worker that was registered as taking text answered with token ids"))

    def item(self, value: Any) -> None:
        try:
            chunk = msgspec.convert(value, _Chunk)
        except msgspec.ValidationError as error:
            self.fail(ProtocolError(f"a worker answered with something that is no chat chunk: {error}"))
            return
        if self._done:
            return
        self._usage = chunk.usage or self._usage
        for part in chunk.choices:
            self._part(part.delta or part.message or _Delta())
            self._reason = part.finish_reason or self._reason

    def _part(self, delta: _Delta) -> None:
        if thought := delta.reasoning_content or delta.reasoning:
            self._choice.reasoning(thought)
        if delta.content:
            self._choice.text(delta.content)
        for place, call in enumerate(delta.tool_calls or ()):
            index = place if call.index is None else call.index
            if index == self._call + 1:
                self._call = index
                self._choice.tool_start(index, call.id or new_call_id(), call.function.name or "")
            elif index != self._call:
                self.fail(ProtocolError("a worker mixed up the order of its tool calls"))
                return
            if call.function.arguments:
                self._choice.tool_arguments(index, call.function.arguments)

    def end(self) -> None:
        if not self._done:
            self._done = True
            self._choice.finish(Finish(self._reason, self._usage))

    def fail(self, error: DynamoException) -> None:
        if not self._done:
            self._done = True
            self._choice.fail(error)


class _Function(Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(Struct):
    function: _Function
    index: int | None = None
    id: str | None = None


class _Delta(Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_Call] | None = None


class _Part(Struct):
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: Literal["stop", "length", "tool_calls", "content_filter"] | None = None


class _Chunk(Struct):
    choices: list[_Part] = []
    usage: Usage | None = None


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
            self._done.exception()  # where nobody waits any more, nobody needs to be told

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


async def relay_response(
    request: web.Request,
    request_id: str,
    generation: Generation,
    asked: dict[str, Any],
    before: bytes,
) -> web.StreamResponse:
    """The whole answer of a worker that takes text, to the client that asked in the same words."""
    if not asked.get("stream"):
        answer = RelayedAnswer()
        await generation.relay(asked, answer)
        return json_response(await answer.answer(), request_id)
    chunks = Chunks(EventStream(), id="", created=0, model="", object="", choices=1, request_id=request_id)
    await generation.relay(asked, RelayedStream(chunks))
    return await stream_response(request, request_id, chunks, before)
