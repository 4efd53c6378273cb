"""Signals to a program that supervises processes: the first one ends its work, a second one kills the processes."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable
from typing import Any

from dynamo.process.supervisor.supervisor import Supervisor
from dynamo.protocols.errors import StartError


def on_signals(supervisor: Supervisor | None) -> asyncio.Event:
    """Set at the first SIGTERM or SIGINT."""
    signalled = asyncio.Event()

    def on_signal() -> None:
        if signalled.is_set() and supervisor:
            supervisor.kill()
        signalled.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    return signalled


async def unless_signalled(signalled: asyncio.Event, work: Awaitable[Any]) -> bool:
    """Whether `work` ended before a signal came; raises what it raised."""
    task, waiter = asyncio.ensure_future(work), asyncio.create_task(signalled.wait())
    try:
        await asyncio.wait((task, waiter), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            return False
        await task
        return True
    finally:
        task.cancel()
        waiter.cancel()
        with contextlib.suppress(asyncio.CancelledError, StartError):
            await task
