"""One request to an engine that answers with an async iterator: one task for its whole life pushes every chunk."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable

from dynamo.protocols.engine import EngineOutput, Usage
from dynamo.protocols.errors import DynamoException, EngineShutdown
from dynamo.runtime.stream import Sink

log = logging.getLogger(__name__)


class StreamRequest(ABC):
    def __init__(self, sink: Sink, forget: Callable[[StreamRequest], None]) -> None:
        """`forget` is called once, when the engine no longer works for this request."""
        self._sink = sink
        self._forget = forget
        self._task: asyncio.Task[None] | None = None
        self.ended = False

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(lambda _: self._forget(self))

    async def finished(self) -> None:
        """Wait until nothing works for this request any more."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    def abort(self) -> None:
        if not self.ended:
            self.ended = True
            self._stop()
            self._sink.item(EngineOutput(finish_reason="cancelled"))
            self._sink.end()

    def fail(self, error: DynamoException) -> None:
        if not self.ended:
            self.ended = True
            self._stop()
            self._sink.fail(error)

    def finish(self, output: EngineOutput) -> None:
        """Push the last output."""
        self.ended = True
        self._sink.item(output)
        self._sink.end()

    async def _run(self) -> None:
        try:
            await self._pump()
        except Exception as error:
            if not self.ended:
                self.ended = True
                self._sink.fail(self._failure(error))
        else:
            self.fail(EngineShutdown("the engine ended its answer without a reason"))

    def _stop(self) -> None:
        if self._task is not None and not self._task.done():
            try:
                self._release()
            except Exception as error:  # a dead engine cannot drop anything, and the other streams must fail too
                log.debug("the engine did not drop a request: %s", error)
            if self._task is not asyncio.current_task():
                self._task.cancel()

    @abstractmethod
    async def _pump(self) -> None:
        """Hand the request to the engine and push its chunks until `finish`."""

    @abstractmethod
    def _release(self) -> None:
        """Have the engine drop the request."""

    @abstractmethod
    def _failure(self, error: Exception) -> DynamoException:
        """What the client is shown of an exception of the engine."""


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int | None) -> Usage:
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details=None if cached_tokens is None else {"cached_tokens": cached_tokens},
    )


def first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).strip().splitlines()[0]
