"""An event loop whose clock jumps to the next timer instead of waiting for it.

Whatever measures time by the loop's clock, sleeps or sets timers runs on it unchanged, in order, as fast as the
processor allows.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class SimulationStuck(RuntimeError):
    """Nothing is left that could ever happen, and the simulation has not ended."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Starts at 0. Threads and sockets work, but time does not wait for them while a timer is set."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_JumpingSelector(self))
        # Adding the time to the next timer may miss it by a rounding error.
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            ready = super().select(1.0)  # a thread may still call back
            if not ready:
                raise SimulationStuck("the simulation waits for something that never happens")
            return ready
        if timeout > 0:
            ready = super().select(0)
            if not ready:
                self._loop.advance(timeout)
            return ready
        # Nothing here comes from sockets: looking at them on every turn would cost a system call.
        return []


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)
