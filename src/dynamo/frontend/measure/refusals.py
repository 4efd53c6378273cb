"""Which refusals are logged: during a flood one line a second, as a line takes as long as the refusal itself."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

REFUSED = frozenset((401, 429, 503, 529))
SECONDS = 1.0


class RefusalLog:
    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._next = clock()
        self._left_out = 0

    def left_out(self) -> int | None:
        """How many refusals before this one were not logged; None if this one is not to be logged either."""
        now = self._clock()
        if now < self._next:
            self._left_out += 1
            return None
        count, self._left_out, self._next = self._left_out, 0, now + SECONDS
        return count
