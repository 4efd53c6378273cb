"""A sink that keeps what it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from dynamo.protocols.engine import EngineOutput
from dynamo.protocols.errors import DynamoException


class Kept:
    """Everything that arrived; `done` is set once, with the end or the failure."""

    def __init__(self, on_tokens: Callable[[], None] | None = None) -> None:
        self.ids: list[int] = []
        self.items: list[Any] = []
        self.error: DynamoException | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._on_tokens = on_tokens

    def tokens(self, ids: list[int]) -> None:
        assert not self.done.done()
        self.ids += ids
        if self._on_tokens:
            self._on_tokens()

    def item(self, value: Any) -> None:
        assert not self.done.done()
        self.items.append(value)
        if isinstance(value, EngineOutput):
            self.ids += value.token_ids

    def end(self) -> None:
        self.done.set_result(None)

    def fail(self, error: DynamoException) -> None:
        self.error = error
        self.done.set_result(None)

    @property
    def last(self) -> EngineOutput:
        assert self.error is None, self.error
        output = self.items[-1]
        assert isinstance(output, EngineOutput)
        return output
