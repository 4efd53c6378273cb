"""Waits for the first item of a stream, which may be its only one."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from dynamo.protocols.errors import DynamoException, StreamIncomplete


class FirstAnswer:
    """The sink, or outlet, of such a stream: `value` resolves to the item or to the error, also one that it reports.

    With `whole` it resolves once the stream has ended well.
    """

    columnar = True

    def __init__(self, *, whole: bool = False) -> None:
        self.value: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._whole = whole
        self._items: list[Any] = []

    def tokens(self, ids: list[int]) -> None:
        self.item(ids)

    def item(self, value: Any) -> None:
        if error := reported_error(value):
            self.fail(DynamoException(error))
        elif self._whole:
            self._items = self._items or [value]
        elif not self.value.done():
            self.value.set_result(value)

    def end(self) -> None:
        if self._items and not self.value.done():
            self.value.set_result(self._items[0])
        else:
            self.fail(StreamIncomplete("the worker ended without an answer"))

    def fail(self, error: DynamoException) -> None:
        if not self.value.done():
            self.value.set_exception(error)
            self.value.exception()  # marks it as retrieved: the request may have been given up

    async def writable(self) -> None: ...


def reported_error(value: Any) -> str | None:
    """The error that a well-formed item reports."""
    read = value.get if isinstance(value, dict) else partial(getattr, value)
    reason = str(read("finish_reason", None) or "")
    return reason if reason.startswith("error") else "an error event" if read("event", None) == "error" else None
