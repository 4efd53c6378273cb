"""Streams are pushed, not pulled: each step of a worker's output is one plain call of a `Sink`.

There is no task, queue or future per token; the stages of a request are sinks chained once, when it starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from dynamo.protocols.errors import DynamoException, ProtocolError
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
