"""Blocking work that cannot be interrupted: a download, a read from a terminal."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """Like `asyncio.to_thread`, but cancelling this, or ending the process, abandons the thread."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]  # the result is a T where there is no error

    def body() -> None:
        result, failure = None, None
        try:
            result = work()
        except BaseException as error:
            failure = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, failure)

    thread = threading.Thread(target=body, name="dynamo-blocking", daemon=True)
    thread.start()
    try:
        return await done
    finally:
        if not done.cancelled():
            thread.join()  # it has nothing left to do
