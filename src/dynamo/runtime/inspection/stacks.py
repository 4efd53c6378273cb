"""The stacks of threads, which frame holds the event loop, and what the loop's tasks wait for."""

from __future__ import annotations

import asyncio
import sys
import sysconfig
import threading
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from types import CodeType, FrameType
from typing import Any

from dynamo.runtime.inspection.slices import paced

FrameRow = dict[str, Any]
LIBRARY = sysconfig.get_path("stdlib")
DEEPEST = 100
"""Nested awaits that are followed."""
ASYNCIO = str(PurePath(asyncio.__file__).parent)
Found = dict[str, Any]


def _is_standard(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return file.startswith((LIBRARY, "<frozen")) and "-packages" not in file


def frames_of(frame: FrameType | None) -> list[FrameType]:
    """The outermost first."""
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    frames.reverse()
    return frames


def place_of(frame: FrameType) -> FrameRow:
    """No values of variables: they may be prompts or secrets."""
    code = frame.f_code
    return {"function": code.co_qualname, "file": code.co_filename, "line": frame.f_lineno}


def thread_stacks() -> list[dict[str, Any]]:
    names = {thread.ident: thread for thread in threading.enumerate()}
    own = threading.get_ident()
    rows = []
    for ident, frame in paced(sys._current_frames().items()):
        if ident != own:
            thread = names.get(ident)
            rows.append(
                {
                    "thread": thread.name if thread else f"thread {ident}",
                    "daemon": bool(thread and thread.daemon),
                    "stack": [place_of(each) for each in frames_of(frame)],
                }
            )
    return rows


class LoopWatch:
    """Looks at the thread of an event loop from another thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Called in the loop's thread."""
        self._loop = loop
        self._ident = threading.get_ident()
        self._base = 0
        """Frames below the callbacks of the loop."""
        loop.call_soon(self._measure_base)

    def _measure_base(self) -> None:
        self._base = len(frames_of(sys._getframe())) - 1

    def frames(self) -> list[FrameType]:
        """What the loop runs now, its own frames left out; empty while it waits."""
        frames = frames_of(sys._current_frames().get(self._ident))[self._base :]
        return [] if frames and frames[-1].f_code.co_filename.endswith("selectors.py") else frames

    def culprit(self, samples: Sequence[Sequence[FrameType]]) -> dict[str, Any] | None:
        """The innermost frame of other code than Python's library that was there in all samples; None if none was."""
        common = 0
        shortest = min(map(len, samples), default=0)
        while common < shortest and all(one[common] is samples[0][common] for one in samples):
            common += 1
        if not common:
            return None
        last = samples[-1]
        # Of `time.sleep` or `socket.recv` the one who called it is to be named, where there is one.
        culprit = next((each for each in reversed(last[:common]) if not _is_standard(each)), last[common - 1])
        task = asyncio.current_task(self._loop)
        return {
            "culprit": place_of(culprit),
            "task": task.get_name() if task else None,
            "stack": [place_of(each) for each in last],
        }


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
