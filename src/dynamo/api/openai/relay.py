"""Streams of workers that take text: their own chunks, passed on as events."""

from __future__ import annotations

from typing import Any

import msgspec

from dynamo.api.answers.sse import DONE, EventStream
from dynamo.api.openai.chunks import error_events
from dynamo.protocols.errors import DynamoException
from dynamo.serving.relay import WorkerName, checked_chunk, default_reason, unexpected_tokens


class RelayedStream:
    def __init__(self, head: dict[str, Any], worker: WorkerName, request_id: str, events: EventStream) -> None:
        """`head`: what a chunk begins with, where the worker leaves it out."""
        self.events = events
        self.error: DynamoException | None = None
        self._head = head
        self._worker = worker
        self._request_id = request_id
        self._unfinished: dict[int, dict[str, Any]] = {0: {}}
        """The choices that have no finish reason yet; their last part."""

    def tokens(self, ids: list[int]) -> None:
        self.fail(unexpected_tokens())

    def item(self, value: Any) -> None:
        if self.error is not None:
            return
        try:
            chunk = checked_chunk(value, self._worker)
        except DynamoException as error:
            self.fail(error)
            return
        if any("message" in part for part in chunk["choices"]):
            chunk = _as_chunk(chunk)
        for part in chunk["choices"]:
            index = part.get("index") or 0
            if part.get("finish_reason") is None:
                self._unfinished[index] = part
            else:
                self._unfinished.pop(index, None)
        self._write({**self._head, **chunk})

    def _write(self, chunk: dict[str, Any]) -> None:
        self.events.write(b"data: " + msgspec.json.encode(chunk) + b"\n\n")

    def end(self) -> None:
        """A worker that ends without a finish reason has finished."""
        if self.error is not None:
            return
        said: dict[str, Any] = {"text": ""} if self._head["object"] == "text_completion" else {"delta": {}}
        for index, part in self._unfinished.items():
            reason = default_reason(part.get("delta"))
            self._write({**self._head, "choices": [{"index": index, **said, "finish_reason": reason}]})
        self.events.end(DONE)

    def fail(self, error: DynamoException) -> None:
        if self.error is None:
            self.error = error
            self.events.fail(error_events(error, self._request_id) if self.events.has_begun else b"")


def _as_chunk(answer: dict[str, Any]) -> dict[str, Any]:
    """A whole `chat.completion` as the only chunk of a stream."""
    parts = []
    for part in answer["choices"]:
        said = part.get("message")
        if isinstance(said, dict):
            calls = said.get("tool_calls")
            if isinstance(calls, list):
                said = {**said, "tool_calls": [{"index": at, **call} for at, call in enumerate(calls)]}
            part = {**{name: value for name, value in part.items() if name != "message"}, "delta": said}
        parts.append(part)
    return {**answer, "object": "chat.completion.chunk", "choices": parts}
