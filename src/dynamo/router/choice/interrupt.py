"""Runs foreign code for a few milliseconds at most, on the main thread."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from resource import RUSAGE_THREAD, getrusage
from time import perf_counter, thread_time
from types import FrameType
from typing import TypeVar

T = TypeVar("T")
_AGAIN = 0.001
"""Seconds until code that caught the interruption is interrupted again."""


class Stalled(BaseException):
    """Raised inside the code; no `except Exception` there catches it."""


class _Alarm:
    """Interrupts what computes or sleeps for `seconds`, and not what the operating system keeps from running."""

    def __init__(self, seconds: float) -> None:
        self.armed = True
        self._seconds = seconds
        self._waits = getrusage(RUSAGE_THREAD).ru_nvcsw
        self._begun, self._computed = perf_counter(), thread_time()

    def ring(self, number: int, frame: FrameType | None) -> None:
        if self.armed and self.took() >= 0.9 * self._seconds:
            raise Stalled

    def took(self) -> float:
        """Seconds of processor time, or of any time if it slept."""
        if getrusage(RUSAGE_THREAD).ru_nvcsw != self._waits:
            return perf_counter() - self._begun
        return thread_time() - self._computed


def limited(seconds: float, work: Callable[[], T]) -> tuple[T, float]:
    """What `work` returns, and the seconds it took; raises Stalled after `seconds`.

    C code is interrupted when it returns. On other threads nothing is interrupted: signals reach the main thread only.
    """
    alarm = _Alarm(seconds)
    if threading.current_thread() is not threading.main_thread():
        return work(), alarm.took()
    before = signal.signal(signal.SIGALRM, alarm.ring)
    delay, interval = signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
    try:
        try:
            result = work()
        finally:
            alarm.armed = False
        return result, alarm.took()
    finally:
        # An alarm that rings just before it is disarmed ends up here too.
        alarm.armed = False
        signal.setitimer(signal.ITIMER_REAL, delay, interval)
        signal.signal(signal.SIGALRM, before)
