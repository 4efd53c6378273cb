"""Answers of workers that take text: OpenAI chunks, read into a choice or folded into one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal

import msgspec
from msgspec import Struct

from dynamo.pipeline.choice import ChoiceSink, Finish
from dynamo.pipeline.parse import new_call_id
from dynamo.protocols.answers import CompletionUsage
from dynamo.protocols.engine import Usage
from dynamo.protocols.errors import DynamoException, ProtocolError, Unknown
from dynamo.serving.collect import Listener

WorkerName = Callable[[], str]
"""Names the worker in errors."""


def checked_chunk(value: Any, worker: WorkerName) -> dict[str, Any]:
    """A worker's item, with a usage that adds up or none; raises DynamoException if it is not an OpenAI chunk."""
    if not isinstance(value, dict):
        raise ProtocolError(f"{worker()} sent a {type(value).__name__} where a chunk belongs")
    choices = value.get("choices")
    if not isinstance(choices, list) or not all(isinstance(part, dict) for part in choices):
        raise _not_a_chunk(value, worker)
    if value.get("usage") is None:
        return value
    try:
        usage = msgspec.convert(value["usage"], Usage).consistent()
    except msgspec.ValidationError:
        return {**value, "usage": None}
    return {**value, "usage": msgspec.to_builtins(CompletionUsage.of(usage))}


def _not_a_chunk(value: dict[str, Any], worker: WorkerName) -> DynamoException:
    error = value.get("error")
    if error is not None:
        message = error.get("message") if isinstance(error, dict) else error
        return Unknown(str(message or "the engine failed"))
    return ProtocolError(f"{worker()} sent a chunk without choices")


class RelayedChoice:
    """Reads a worker's chat chunks into a choice, for APIs whose answers are not OpenAI chunks."""

    def __init__(self, choice: ChoiceSink, worker: WorkerName) -> None:
        self._choice = choice
        self._worker = worker
        self._usage = Usage()
        self._reason = "stop"
        self._call = -1
        self._done = False

    def tokens(self, ids: list[int]) -> None:
        self.fail(unexpected_tokens())

    def item(self, value: Any) -> None:
        try:
            chunk = msgspec.convert(checked_chunk(value, self._worker), _RelayedChunk)
        except msgspec.ValidationError as error:
            self.fail(ProtocolError(f"{self._worker()} sent what is not a chat chunk: {error}"))
            return
        except DynamoException as error:
            self.fail(error)
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
        for position, call in enumerate(delta.tool_calls or ()):
            index = position if call.index is None else call.index
            if index == self._call + 1:
                self._call = index
                self._choice.tool_start(index, call.id or new_call_id(), call.function.name or "")
            elif index != self._call:
                self.fail(ProtocolError(f"{self._worker()} sent its tool calls out of order"))
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


class _RelayedCall(Struct):
    function: _Function
    index: int | None = None
    id: str | None = None


class _Delta(Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_RelayedCall] | None = None


class _Part(Struct):
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: Literal["stop", "length", "tool_calls", "content_filter"] | None = None


class _RelayedChunk(Struct):
    choices: list[_Part] = []
    usage: Usage | None = None


class RelayedResponse:
    """The worker's chunks folded into one answer; fields beside `choices` keep their last value."""

    def __init__(self, head: dict[str, Any], worker: WorkerName, listener: Listener | None = None) -> None:
        """`head`: what an answer begins with, where the worker leaves it out."""
        self._listener = listener
        self._worker = worker
        self._root = dict(head)
        self._choices: dict[int, dict[str, Any]] = {}
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def tokens(self, ids: list[int]) -> None:
        self.fail(unexpected_tokens())

    def item(self, value: Any) -> None:
        try:
            chunk = checked_chunk(value, self._worker)
        except DynamoException as error:
            self.fail(error)
            return
        self._root |= {key: field for key, field in chunk.items() if key != "choices" and field is not None}
        for part in chunk["choices"]:
            fold(self._choices.setdefault(part.get("index") or 0, {}), part)
            if self._listener and not part.get("index"):
                _forward(self._listener, part)

    def end(self) -> None:
        if not self._done.done():
            self._done.set_result(None)

    def fail(self, error: DynamoException) -> None:
        if not self._done.done():
            self._done.set_exception(error)
            self._done.exception()  # marks it as retrieved: the request may have been given up

    async def whole(self) -> dict[str, Any]:
        await self._done
        root = {**self._root, "choices": [self._choices[index] for index in sorted(self._choices)]}
        if not root["choices"]:
            said: dict[str, Any] = {"delta": {}} if "chat" in root["object"] else {"text": ""}
            empty: dict[str, Any] = {}
            fold(empty, said)
            root["choices"] = [empty]
        for choice in root["choices"]:
            choice["finish_reason"] = choice["finish_reason"] or default_reason(choice.get("message"))
        if root["object"] == "chat.completion.chunk":
            root["object"] = "chat.completion"
        root.setdefault("usage", {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0})
        return root


def default_reason(said: dict[str, Any] | None) -> str:
    """The finish reason of a choice whose worker ended without one, by its message or last delta."""
    return "tool_calls" if said and said.get("tool_calls") else "stop"


def _forward(listener: Listener, part: dict[str, Any]) -> None:
    delta = part.get("delta") or part.get("message") or {}
    reasoning, text = delta.get("reasoning_content"), delta.get("content") or part.get("text")
    if isinstance(reasoning, str) and reasoning:
        listener.reasoning(reasoning)
    if isinstance(text, str) and text:
        listener.text(text)


def fold(choice: dict[str, Any], part: dict[str, Any]) -> None:
    """Add one chunk's part to its choice."""
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


def unexpected_tokens() -> ProtocolError:
    return ProtocolError("a worker that was registered as taking text answered with token ids")
