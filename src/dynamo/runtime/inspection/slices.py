"""Work in slices, on the event loop or beside it: streams go on in between."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter, sleep, thread_time
from typing import Any, TypeVar

T = TypeVar("T")

SLICE_SECONDS = 0.0005
"""How long the loop is held at a time."""


def paced(items: Iterable[T], clock: Callable[[], float] = perf_counter, rest: float = SLICE_SECONDS) -> Iterator[T]:
    """The same items, for a thread beside the event loop: it sleeps for `rest` after each slice of work on them.

    A thread that computes without a pause would let the loop wait for Python's lock, 5 ms at a time. Long work needs
    long rests: the loop loses the lock whenever it waits for anything, and with it the time of a slice.
    """
    began = clock()
    for item in items:
        yield item
        if clock() - began >= SLICE_SECONDS:
            sleep(rest)
            began = clock()


class SlicedWork:
    """Advances an iterator on the loop, a slice in each turn, and collects what it yields.

    Used by another thread, which waits for `begun` and `done`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Callable[[], Iterator[Any]],
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """`work` is called on the loop. What it yields may be None, which is not collected: a place to pause."""
        self.begun = threading.Event()
        self.done = threading.Event()
        self.results: list[Any] = []
        self.error: Exception | None = None
        self.turns = 0
        self.longest = 0.0
        """Processor seconds of the longest slice."""
        self._loop = loop
        self._work = work
        self._clock = clock
        self._iterator: Iterator[Any] | None = None
        self._given_up = False
        loop.call_soon_threadsafe(self._turn)

    def give_up(self) -> None:
        self._given_up = True

    def _turn(self) -> None:
        self.begun.set()
        if self._given_up:
            return
        self.turns += 1
        began, computed = self._clock(), thread_time()
        try:
            if self._iterator is None:
                self._iterator = self._work()
            for result in self._iterator:
                if result is not None:
                    self.results.append(result)
                if self._clock() - began >= SLICE_SECONDS:
                    self._loop.call_soon(self._turn)
                    return
        except Exception as error:
            self.error = error
        finally:
            self.longest = max(self.longest, thread_time() - computed)
        self.done.set()
