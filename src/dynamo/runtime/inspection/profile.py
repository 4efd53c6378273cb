"""A sampling profile: where the threads of this process spend processor time."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import Counter
from types import CodeType
from typing import Any

from dynamo.runtime.inspection.slices import paced
from dynamo.runtime.inspection.stacks import frames_of

EVERY_SECONDS = 0.01
LEAST_PAUSE = 50
"""A pause is at least this many times as long as the look before it: the profile costs at most 2 % of a core."""
MOST_STACKS = 10_000
Stack = tuple[str, tuple[CodeType, ...], int]
"""The thread's name, its functions from the outermost in, and the line of the innermost."""


class ThreadProfile:
    """What a thread has computed since the last look is counted for the stack that it has now."""

    def __init__(self) -> None:
        self.seconds: Counter[Stack] = Counter()
        """Processor seconds."""
        self.looks = 0
        self._clocks: dict[int, float] = {}

    def run(self, seconds: float, ended: threading.Event) -> None:
        """Blocks for that time, or until `ended` is set: for a thread of its own."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not ended.is_set():
            began = time.thread_time()
            self._look()
            ended.wait(min(left, max(EVERY_SECONDS, LEAST_PAUSE * (time.thread_time() - began))))

    def _look(self) -> None:
        frames = sys._current_frames()
        for thread in threading.enumerate():
            frame = frames.get(thread.ident or 0)
            native = thread.native_id
            if frame is None or native is None or thread is threading.current_thread():
                continue
            clock = _cpu_clock(native)
            spent = clock - self._clocks.get(native, clock)
            self._clocks[native] = clock
            if spent > 0:
                codes = tuple(each.f_code for each in frames_of(frame))
                key = thread.name, codes, frame.f_lineno
                if key in self.seconds or len(self.seconds) < MOST_STACKS:
                    self.seconds[key] += spent  # type: ignore[assignment]  # Counter's type knows integers only
        self.looks += 1

    def rows(self) -> dict[str, Any]:
        """Processor milliseconds. `folded` is what flame graph tools read: functions separated by `;`."""
        folded: Counter[str] = Counter()
        own: Counter[str] = Counter()
        total: Counter[str] = Counter()
        threads: Counter[str] = Counter()
        for (thread, codes, line), seconds in paced(self.seconds.items()):
            ms = round(seconds * 1000)
            names = [_named(code) for code in codes]
            threads[thread] += ms
            folded[";".join([thread, *names])] += ms
            own[f"{names[-1]}:{line}"] += ms
            for name in set(names):
                total[name] += ms
        return {
            "looks": self.looks,
            "threads": dict(threads.most_common()),
            "own": dict(own.most_common(40)),
            "total": dict(total.most_common(40)),
            "folded": {stack: ms for stack, ms in folded.most_common() if ms},
        }


def _cpu_clock(native_id: int) -> float:
    """The processor seconds of a thread; 0 of one that has ended.

    On Linux the clock of any thread has a number made of its id. The way over pthread would crash for one that ends.
    """
    with contextlib.suppress(OSError):
        return time.clock_gettime((~native_id << 3) | 6)
    return 0.0


def _named(code: CodeType) -> str:
    folders = code.co_filename.replace(";", ",").split("/")
    return f"{code.co_qualname.replace(';', ',')} ({'/'.join(folders[-2:])})"
