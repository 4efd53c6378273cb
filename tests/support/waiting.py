"""Waiting for what must happen: by polling, for as long as a loaded machine may need, and never for a fixed time."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 120.0
"""Only ends a test that hangs: no test passes or fails by how long something took."""

_TURNS = 100
_INTERVAL = 0.005


async def until(condition: Callable[[], T | Awaitable[T]]) -> T:
    """The first true value of `condition`, which may be a plain or an async function.

    Most conditions come true within a few turns of this event loop; the others depend on other processes, and polling
    those without a pause would take away the processor that they need.
    """
    turn = 0
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                value = condition()
                if inspect.isawaitable(value):
                    value = await value
                if value:
                    return value
                turn += 1
                await asyncio.sleep(0 if turn < _TURNS else _INTERVAL)
    except TimeoutError:
        raise AssertionError(_never(condition)) from None


def until_sync(condition: Callable[[], T]) -> T:
    """`until` for tests that have no event loop."""
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < deadline, _never(condition)
        time.sleep(_INTERVAL)
    return value


def _never(condition: Callable[[], object]) -> str:
    try:
        source = inspect.getsource(condition).strip()
    except (OSError, TypeError):
        source = repr(condition)
    return f"not true within {PATIENCE:.0f} s: {source}"
