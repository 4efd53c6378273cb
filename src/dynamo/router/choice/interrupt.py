"""Runs foreign code for a few milliseconds at most, on the main thread."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable
from time import thread_time
from types import FrameType
from typing import TypeVar

T = TypeVar("T")
_AGAIN = 0.001
"""Seconds between rings: code that caught an interruption is interrupted again."""
_RINGS = 3
"""After this many, code that computes little is asleep."""


class Stalled(BaseException):
    """Raised inside the code; no `except Exception` there catches it."""


class _Alarm:
    """Interrupts what computes or sleeps for `seconds`, and not what the operating system keeps from running."""

    def __init__(self, seconds: float) -> None:
        self.armed = True
        self._seconds = seconds
        self._rings = 0
        self._computed = thread_time()

    def ring(self, number: int, frame: FrameType | None) -> None:
        # Code that was kept from running hears one ring for all that time, however long; code that sleeps hears each.
        self._rings += 1
        if frame is None or frame.f_code is limited.__code__:
            return  # an exception between its lines would leave the alarm on
        if self.armed and (self._rings > _RINGS or self.took() >= 0.9 * self._seconds):
            raise Stalled

    def took(self) -> float:
        """Seconds of processor time."""
        return thread_time() - self._computed


def limited(seconds: float, work: Callable[[], T]) -> tuple[T, float]:
    """What `work` returns, and the seconds it computed; raises Stalled after `seconds`, or 3 ms more if it sleeps.

    C code is interrupted when it returns. On other threads nothing is interrupted: signals reach the main thread only.
    Meanwhile garbage is not collected: the finalizers of others' objects would be interrupted in place of the code.
    """
    alarm = _Alarm(seconds)
    if threading.current_thread() is not threading.main_thread():
        return work(), alarm.took()
    collects = gc.isenabled()
    gc.disable()
    before = signal.signal(signal.SIGALRM, alarm.ring)
    delay, interval = signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
    try:
        try:
            result = work()
        finally:
            alarm.armed = False
        return result, alarm.took()
    finally:
        signal.setitimer(signal.ITIMER_REAL, delay, interval)
        signal.signal(signal.SIGALRM, before)
        if collects:
            gc.enable()
