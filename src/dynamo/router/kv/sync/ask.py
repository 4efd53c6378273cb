"""One question to one instance, and all it answers."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from dynamo.protocols.errors import DynamoException, ProtocolError, StreamIncomplete
from dynamo.runtime.context import Context
from dynamo.runtime.plane.base import Channel

T = TypeVar("T")


class Items:
    """A sink that takes items and no tokens."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._items: list[Any] = []

    def tokens(self, ids: list[int]) -> None:
        self.fail(ProtocolError("tokens came where an item belongs"))

    def item(self, value: Any) -> None:
        self._items.append(value)

    def end(self) -> None:
        if not self._items:
            self.fail(StreamIncomplete("the stream ended without an answer"))
        elif not self.answer.done():
            self.answer.set_result(self._items)

    def fail(self, error: DynamoException) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


async def ask(channel: Channel, request: Any, answer_type: type[T]) -> list[T]:
    """Raises what the instance answered with, or that it could not be reached. Cancelling it cancels over there."""
    if not channel.ready:
        await channel.open()
    context, sink = Context(), Items()
    try:
        channel.send(request, context, sink, item_type=answer_type)
        answer: list[T] = await sink.answer
        return answer
    finally:
        context.kill()
        sink.answer.cancel()
