"""The events of an answer, which several clients may read, each from any event on."""

from __future__ import annotations

import asyncio

from dynamo.api.answers.sse import KEEP_ALIVE, EventStream
from dynamo.protocols.errors import DynamoException

MAX_SIZE = 16 << 20
"""How many bytes of events of one answer are kept; a longer answer goes on and cannot be read from its beginning."""


class EventLog:
    """Written like an `EventStream`. Its events are numbered in the order in which they come, from 0."""

    def __init__(self, *, keep: bool) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.has_begun = False
        self.complete = keep
        """All events since the first are there."""
        self._written: list[bytes] = []
        self._size = 0
        self._followers: list[EventStream] = []

    def write(self, data: bytes) -> None:
        """Add one or more whole events."""
        self.has_begun = True
        if self.complete:
            self._written.append(data)
            self._size += len(data)
            if self._size > MAX_SIZE:
                self.complete = False
                self._written.clear()
        for follower in self._followers:
            follower.write(data)

    def end(self, data: bytes = b"") -> None:
        if self.ended.done():
            return
        if data:
            self.write(data)
        self.ended.set_result(None)
        for follower in self._followers:
            follower.end()
        self._followers.clear()

    def fail(self, data: bytes) -> None:
        self.end(data)

    def follow(self, after: int = -1) -> EventStream:
        """A stream of the events after the one with this number."""
        stream = EventStream()
        events = b"".join(self._written).split(b"\n\n")[max(0, after + 1) : -1]
        # Without events to send, a comment opens the stream at once.
        written = b"".join(event + b"\n\n" for event in events) or KEEP_ALIVE
        if self.ended.done():
            stream.end(written)
        else:
            stream.write(written)
            self._followers.append(stream)
        return stream

    def leave(self, stream: EventStream) -> None:
        if stream in self._followers:
            self._followers.remove(stream)


class FollowedStream:
    """A reader's part of a log: an error of the answer is one of its events."""

    error: DynamoException | None = None

    def __init__(self, events: EventStream) -> None:
        self.events = events
