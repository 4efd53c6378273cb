"""The stacks of threads, and which frame holds the event loop."""

from __future__ import annotations

import asyncio
import sys
import sysconfig
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any

from dynamo.runtime.inspection.slices import paced

FrameRow = dict[str, Any]
LIBRARY = sysconfig.get_path("stdlib")


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
