"""Answers on their way to a client: what workers push is kept until the call is ready to send it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from msgspec import Struct

from dynamo.api.protobuf import Message
from dynamo.model import json_unescaped
from dynamo.pipeline.choice import Finish, TokenLogprob
from dynamo.protocols.errors import DynamoException, ProtocolError


class StreamedPart(Struct):
    """The text of each choice since the last part, and the reasons of those that finished in it."""

    texts: list[str]
    reasons: list[str]
    is_last: bool


class TextStream:
    """The choices of one answer. Text that arrives while the client is slow goes out together."""

    def __init__(self, choices: int) -> None:
        self._texts: list[list[str]] = [[] for _ in range(choices)]
        self._reasons = [""] * choices
        self._running = choices
        self._error: DynamoException | None = None
        self._changed = asyncio.Event()

    def choice(self, index: int) -> StreamedChoice:
        return StreamedChoice(self, index)

    def add(self, index: int, text: str) -> None:
        self._texts[index].append(text)
        self._changed.set()

    def finish(self, index: int, reason: str) -> None:
        self._reasons[index] = reason
        self._running -= 1
        self._changed.set()

    def fail(self, error: DynamoException) -> None:
        self._error = self._error or error
        self._changed.set()

    async def parts(self) -> AsyncIterator[StreamedPart]:
        """Until all choices have finished; raises the error of the first that failed."""
        is_last = False
        while not is_last:
            await self._changed.wait()
            self._changed.clear()
            if self._error:
                raise self._error
            is_last = self._running <= 0
            part = StreamedPart(["".join(pieces) for pieces in self._texts], self._reasons, is_last)
            self._texts = [[] for _ in self._texts]
            self._reasons = [""] * len(self._reasons)
            yield part


class StreamedChoice:
    """The choice of a model whose tokens become text here."""

    def __init__(self, stream: TextStream, index: int) -> None:
        self._stream = stream
        self._index = index

    def escaped(self, text: str) -> None:
        self.text(json_unescaped(text))

    def text(self, text: str) -> None:
        self._stream.add(self._index, text)

    def reasoning(self, text: str) -> None:
        self.text(text)

    def tool_start(self, index: int, id: str, name: str) -> None:
        raise AssertionError("completions are not parsed for tool calls")

    def tool_arguments(self, index: int, fragment: str) -> None:
        raise AssertionError("completions are not parsed for tool calls")

    def logprobs(self, tokens: list[TokenLogprob]) -> None:
        """The protocol has no field for them."""

    def prompt_logprobs(self, tokens: list[TokenLogprob]) -> None:
        """This API has no field for them."""

    def finish(self, finish: Finish) -> None:
        self._stream.finish(self._index, finish.reason)

    def fail(self, error: DynamoException) -> None:
        self._stream.fail(error)


class ItemStream:
    """The items of a worker that takes text or tensors, in order, as `read` makes responses of them.

    They are read when they arrive: a generator in this process may change an object after it has yielded it.
    """

    def __init__(self, read: Callable[[Any], Message | None]) -> None:
        """`read` returns None for an item without a response."""
        self._read = read
        self._items: list[Message] = []
        self._ended = False
        self._error: DynamoException | None = None
        self._changed = asyncio.Event()

    def tokens(self, ids: list[int]) -> None:
        self.fail(ProtocolError("a worker that was registered as taking text or tensors answered with token ids"))

    def item(self, value: Any) -> None:
        try:
            response = self._read(value)
        except DynamoException as error:
            self.fail(error)
            return
        if response is not None:
            self._items.append(response)
            self._changed.set()

    def end(self) -> None:
        self._ended = True
        self._changed.set()

    def fail(self, error: DynamoException) -> None:
        self._error = self._error or error
        self._changed.set()

    async def responses(self) -> AsyncIterator[Message]:
        while True:
            await self._changed.wait()
            self._changed.clear()
            ended = self._ended
            items, self._items = self._items, []
            for item in items:
                yield item
            if self._error:
                raise self._error
            if ended:
                return
