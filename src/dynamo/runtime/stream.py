"""Streams are pushed, not pulled: each step of a worker's output is one plain call of a `Sink`.

There is no task, queue or future per token; the stages of a request are sinks chained once, when it starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from dynamo.protocols.errors import DynamoException, StreamIncomplete
from dynamo.runtime.context import Context


class Sink(Protocol):
    """Where a stream goes. After `end` or `fail`, exactly one of which is called once, nothing more arrives."""

    def tokens(self, ids: list[int]) -> None:
        """New token ids and nothing else: the hot path."""

    def item(self, value: Any) -> None:
        """Anything else: an engine output with more than tokens, or what a user-written handler yields."""

    def end(self) -> None: ...

    def fail(self, error: DynamoException) -> None: ...


class Outlet(Sink, Protocol):
    """The sink a handler is given: it knows whether its reader takes bare tokens and whether it keeps up."""

    columnar: bool
    """The reader accepts tokens merged per step; otherwise every yielded item must arrive unchanged."""

    async def writable(self) -> None:
        """Wait while too many bytes are unsent."""


Handler = Callable[[Any, Context, Outlet], None]
"""Starts one request: (request, context, outlet). It returns at once; the outlet is ended or failed later."""


class FirstAnswer:
    """A sink, or outlet, whose `value` resolves to the first item or to the error, also to one that the item reports.

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
