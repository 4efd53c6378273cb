"""Streams of workers that take text: their own chunks, passed on as events."""

from __future__ import annotations

from typing import Any

import msgspec

from dynamo.frontend.answers.chunks import error_events
from dynamo.frontend.answers.sse import DONE, EventStream
from dynamo.protocols.errors import DynamoException
from dynamo.serving.relay import unexpected_tokens


class RelayedStream:
    def __init__(self, request_id: str) -> None:
        self.events = EventStream()
        self.error: DynamoException | None = None
        self._request_id = request_id

    def tokens(self, ids: list[int]) -> None:
        self.fail(unexpected_tokens())

    def item(self, value: Any) -> None:
        self.events.write(b"data: " + msgspec.json.encode(value) + b"\n\n")

    def end(self) -> None:
        self.events.end(DONE)

    def fail(self, error: DynamoException) -> None:
        if self.error is None:
            self.error = error
            self.events.end(error_events(error, self._request_id) if self.events.has_begun else b"")
