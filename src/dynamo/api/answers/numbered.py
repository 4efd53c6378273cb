"""Events with ids, so that a client can say which it has: those of a stream that any frontend continues.

The stream is built again from its first token, and the events that the client has are left out. That they are the same
events rests on this: each choice's events follow from its tokens alone, one token after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from dynamo.api.answers.sse import KEEP_ALIVE, EventStream
from dynamo.serving.request import ModelRequest

_END = b"\n\n"


class NumberedEvents(EventStream):
    """The id of an event is the stream's name, how many events each choice has had, and the worker's instance."""

    __slots__ = ("_after", "_counts", "_instance", "_name")

    def __init__(self, name: str, after: Sequence[int], choices: int, instance: Callable[[], int | None]) -> None:
        """The first `after` events of each choice are left out."""
        super().__init__()
        self._name = name.encode()
        self._after = [*after, *[0] * choices][:choices]
        self._counts = [0] * choices
        self._instance = instance

    def opened(self) -> None:
        """Begin the answer before there is an event that the client does not have."""
        if any(self._after):
            super().write(KEEP_ALIVE)

    def write(self, data: bytes) -> None:
        self._write_of(0, data)

    def writer(self, choice: int) -> Callable[[bytes], None]:
        return partial(self._write_of, choice)

    def end(self, data: bytes = b"", choice: int = 0) -> None:
        numbered = self._numbered(choice, data)
        super().end(b"")
        if numbered:
            super().write(numbered)

    def fail(self, data: bytes) -> None:
        """The error has no id: a client that asks again wants what comes instead of it."""
        super().end(b"")
        if data:
            super().write(data)

    @property
    def has_begun(self) -> bool:
        return any(self._counts) or super().has_begun

    def _write_of(self, choice: int, data: bytes) -> None:
        numbered = self._numbered(choice, data)
        if numbered:
            super().write(numbered)

    def _numbered(self, choice: int, data: bytes) -> bytes:
        counts, after, written = self._counts, self._after[choice], b""
        for event in data.split(_END)[:-1]:
            counts[choice] += 1
            if counts[choice] > after:
                written += b"id: %b\n%b\n\n" % (self._id(), event)
        return written

    def _id(self) -> bytes:
        # Another choice may not be as far yet as it was when the client read it last.
        had = (b"%d" % max(count, after) for count, after in zip(self._counts, self._after, strict=True))
        return b"%b:%b@%x" % (self._name, b".".join(had), self._instance() or 0)


def events_of(inference: ModelRequest[Any], choices: int = 1) -> EventStream:
    """The events of an answer; with ids if the client asks for a stream that any frontend continues."""
    stream = inference.stream
    if stream is None:
        return EventStream()
    events = NumberedEvents(stream.name.name, stream.after, choices, inference.instance_id)
    events.opened()
    return events
