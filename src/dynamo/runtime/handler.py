"""Adapts user-written handlers, async generators of (request[, context]), to the request plane."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any

from dynamo.protocols.errors import Cancelled, Disconnected, from_exception
from dynamo.runtime.context import Context
from dynamo.runtime.plane.route import log_failure
from dynamo.runtime.stream import Outlet

UserHandler = Callable[..., Any]

# The words before the last colon are what programs written for ai-dynamo look for.
GAVE_UP = "BackendCancelled: CancelledError: the handler gave the request up"
ENDED_EARLY = "Disconnected: the handler stopped the request before it was complete"


class GeneratorHandler:
    """Runs one task per request and owns it until it is done.

    A handler that takes a `context` sees the cancellation there, and is closed at its next item if the caller is gone.
    Any other handler's task is cancelled. A handler that stops its own context, or raises `CancelledError` unasked, has
    not answered: its caller gets an error.
    """

    def __init__(self, function: UserHandler) -> None:
        self._function = function
        self._takes_context = takes_context(function)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    def __call__(self, request: Any, context: Context, outlet: Outlet) -> None:
        task = asyncio.create_task(self._run(request, context, outlet))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if not self._takes_context:
            context.on_stop(lambda _: task.cancel())

    async def _run(self, request: Any, context: Context, outlet: Outlet) -> None:
        try:
            await self._stream(request, context, outlet)
        except asyncio.CancelledError:
            asked = context.stopped_by_caller or self._closing
            outlet.fail(Cancelled("request was cancelled" if asked else GAVE_UP))
        except (Exception, SystemExit) as error:  # sys.exit in a handler fails its request, not the server
            log_failure(context, error)
            outlet.fail(from_exception(error))
        except GeneratorExit as error:
            outlet.fail(from_exception(error))
        else:
            if context.is_stopped() and not context.stopped_by_caller:
                outlet.fail(Disconnected(ENDED_EARLY))
            else:
                outlet.end()

    async def _stream(self, request: Any, context: Context, outlet: Outlet) -> None:
        answer = self._function(request, context=context) if self._takes_context else self._function(request)
        if inspect.isawaitable(answer):
            answer = await answer
        if not hasattr(answer, "__aiter__"):
            outlet.item(answer)
            return
        stream: AsyncIterator[Any] = answer.__aiter__()
        columnar = outlet.columnar
        try:
            async for item in stream:
                if columnar and type(item) is dict and bare_tokens(item):
                    outlet.tokens(item["token_ids"])
                else:
                    outlet.item(item)
                if context.is_killed():
                    return
                await outlet.writable()
        finally:
            close = getattr(stream, "aclose", None)
            if close:
                await close()

    async def close(self) -> None:
        """Cancel what still runs and wait until it is gone."""
        self._closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def bare_tokens(item: dict[str, Any]) -> bool:
    """Whether the item has new tokens and nothing else; fields that are None do not count."""
    ids = item.get("token_ids")
    if type(ids) is not list:
        return False
    return len(item) == 1 or all(value is None for key, value in item.items() if key != "token_ids")


def takes_context(function: UserHandler) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(p.name == "context" or p.kind is p.VAR_KEYWORD for p in parameters)
