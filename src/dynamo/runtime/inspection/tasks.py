"""What the tasks of an event loop wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import PurePath
from types import CodeType, FrameType
from typing import Any

from dynamo.runtime.inspection.stacks import place_of

DEEPEST = 100
"""Nested awaits that are followed."""
ASYNCIO = str(PurePath(asyncio.__file__).parent)
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
    code: CodeType | None = getattr(coroutine, "cr_code", None)
    frames, awaited = suspended(coroutine)
    # Of `await event.wait()` the caller says where, and asyncio's own function what for.
    own = [frame for frame in frames if not frame.f_code.co_filename.startswith(ASYNCIO)]
    at = own[-1] if own else frames[-1] if frames else None
    within = frames[len(own)].f_code.co_qualname if own and len(own) < len(frames) else ""
    key = code, at.f_code if at else None, at.f_lineno if at else 0, within, type(awaited)
    row = groups.get(key)
    if row is None:
        running = bool(getattr(coroutine, "cr_running", False))
        row = groups[key] = {
            "count": 0,
            "task": code.co_qualname if code else type(coroutine).__name__,
            "at": place_of(at) if at else None,
            "for": "running" if running else within or _described(awaited),
            "name": task.get_name(),
        }
    row["count"] += 1


def suspended(coroutine: Any) -> tuple[list[FrameType], Any]:
    """The frames of a suspended coroutine, the outermost first, and the object that the innermost awaits."""
    frames: list[FrameType] = []
    for _ in range(DEEPEST):
        for kind in ("cr", "gi", "ag"):
            frame = getattr(coroutine, f"{kind}_frame", None)
            if frame is not None:
                frames.append(frame)
                coroutine = getattr(coroutine, "gi_yieldfrom" if kind == "gi" else f"{kind}_await", None)
                break
        else:
            break
    return frames, coroutine


def _described(awaited: Any) -> str:
    if awaited is None:
        return "its turn"
    if isinstance(awaited, asyncio.Task):
        return f"task {awaited.get_name()}"
    name = type(awaited).__qualname__
    if "async_generator" in name:
        return "an async generator"
    return "a future" if "Future" in name else name
