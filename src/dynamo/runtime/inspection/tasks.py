"""What the tasks of an event loop wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import CodeType
from typing import Any

from dynamo.runtime.inspection.stacks import place_of

DEEPEST = 100
"""Nested awaits that are followed."""
Found = dict[str, Any]


def task_rows(loop: asyncio.AbstractEventLoop) -> Iterator[Found | None]:
    """Tasks of one kind that wait in one place are one row, counted. Yields None after each task: a place to pause."""
    groups: dict[tuple[Any, ...], Found] = {}
    for task in asyncio.all_tasks(loop):
        if not task.done():
            _add(groups, task)
        yield None
    yield from sorted(groups.values(), key=lambda row: -row["count"])


def _add(groups: dict[tuple[Any, ...], Found], task: asyncio.Task[Any]) -> None:
    coroutine = task.get_coro()
    frame, awaited = innermost(coroutine)
    code: CodeType | None = getattr(coroutine, "cr_code", None)
    running = bool(getattr(coroutine, "cr_running", False))
    key = code, frame.f_code if frame else None, frame.f_lineno if frame else 0, type(awaited)
    row = groups.get(key)
    if row is None:
        row = groups[key] = {
            "count": 0,
            "task": code.co_qualname if code else type(coroutine).__name__,
            "at": place_of(frame) if frame else None,
            "for": "running" if running else _described(awaited),
            "name": task.get_name(),
        }
    row["count"] += 1


def innermost(coroutine: Any) -> tuple[Any, Any]:
    """The innermost suspended frame of a coroutine, and the object that it awaits."""
    frame = None
    for _ in range(DEEPEST):
        here = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        here = here or getattr(coroutine, "ag_frame", None)
        if here is None:
            break
        frame = here
        following = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
        following = following or getattr(coroutine, "ag_await", None)
        if following is None:
            return frame, None
        coroutine = following
    return frame, coroutine


def _described(awaited: Any) -> str:
    if awaited is None:
        return "its turn"
    if isinstance(awaited, asyncio.Task):
        return f"task {awaited.get_name()}"
    kind = type(awaited)
    return "a future" if "Future" in kind.__name__ else f"{kind.__module__}.{kind.__qualname__}"
