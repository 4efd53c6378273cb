"""Streams of exactly one item, such as an embedding."""

from __future__ import annotations

import asyncio
from typing import Any

from dynamo.protocols.errors import DynamoException, ProtocolError


class OneItem:
    """The sink of such a stream: `value` resolves to the item or to the error."""

    def __init__(self) -> None:
        self.value: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def tokens(self, ids: list[int]) -> None:
        self.fail(ProtocolError("the worker answered with token ids"))

    def item(self, value: Any) -> None:
        if not self.value.done():
            self.value.set_result(value)

    def end(self) -> None:
        self.fail(ProtocolError("the worker ended without an answer"))

    def fail(self, error: DynamoException) -> None:
        if not self.value.done():
            self.value.set_exception(error)
            self.value.exception()  # marks it as retrieved: the request may have been given up
