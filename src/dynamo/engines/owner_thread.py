"""A thread that makes an engine, lives as long as it, and closes it.

SGLang's processes ask the kernel to be killed with the thread that started them, so that thread must not end early.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)


class OwnerThread(Generic[T]):
    def __init__(self, name: str, make: Callable[[], T], close: Callable[[T], None]) -> None:
        self._name = name
        self._make = make
        self._close = close
        self._closing = threading.Event()
        self._made: asyncio.Future[T] | None = None
        self._closed: asyncio.Future[None] | None = None

    async def start(self) -> T:
        """What `make` returns; raises what it raises."""
        self._loop = asyncio.get_running_loop()
        made, closed = self._loop.create_future(), self._loop.create_future()
        self._made, self._closed = made, closed
        self._thread = threading.Thread(target=self._run, args=(made, closed), name=self._name, daemon=True)
        self._thread.start()
        return await asyncio.shield(made)

    async def close(self) -> None:
        """Wait until it is closed; one that is still being made cannot be stopped and is closed as soon as it is."""
        self._closing.set()
        if self._made is not None and self._made.done() and self._closed is not None:
            await asyncio.shield(self._closed)
            self._thread.join()  # it has nothing left to do

    def _run(self, made: asyncio.Future[T], closed: asyncio.Future[None]) -> None:
        try:
            value = self._make()
        except BaseException as error:
            failure = error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
            self._settle(made, error=failure)
        else:
            self._settle(made, value)
            self._closing.wait()
            try:
                self._close(value)
            except Exception:
                log.exception("closing the engine failed")
        self._settle(closed, None)

    def _settle(
        self, future: asyncio.Future[T] | asyncio.Future[None], value: object = None, error: Exception | None = None
    ) -> None:
        def settle() -> None:
            if future.done():
                return
            if error is None:
                future.set_result(value)  # type: ignore[arg-type]  # made gets the value, closed gets None
            else:
                future.set_exception(error)
                future.exception()  # a start that was cancelled leaves it unread

        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(settle)
