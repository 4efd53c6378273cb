"""Waiting for what must happen: by polling, for as long as a loaded machine may need, and never for a fixed time."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

PATIENCE = 300.0
"""Only ends a test that hangs: no test passes or fails by how long something took.

On two processors with a load of 25, vLLM was seen to take 107 s from one line of its log to the next.
"""

_TURNS = 100
_INTERVAL = 0.001
_REMOTE_INTERVAL = 0.02


async def until(condition: Callable[..., Any]) -> Any:
    """The first true value of `condition`, which may be a plain or an async function.

    A plain one mostly comes true within a few turns of this event loop. An async one asks another task or process:
    without a pause it would take away the processor that the answer needs.
    """
    turn, interval = 0, _INTERVAL
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                value = condition()
                if inspect.isawaitable(value):
                    value, interval, turn = await value, _REMOTE_INTERVAL, _TURNS
                if value:
                    return value
                turn += 1
                await asyncio.sleep(0 if turn < _TURNS else interval)
    except TimeoutError:
        raise AssertionError(_never(condition)) from None


def until_sync(condition: Callable[..., Any]) -> Any:
    """`until` for tests that have no event loop."""
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < deadline, _never(condition)
        time.sleep(_REMOTE_INTERVAL)
    return value


def _never(condition: Callable[..., Any]) -> str:
    try:
        source = inspect.getsource(condition).strip()
    except (OSError, TypeError):
        source = repr(condition)
    return f"not true within {PATIENCE:.0f} s: {source}"
