"""How long a request waits for an instance before it gives up: growing pauses with jitter, within a limit."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0


class Backoff:
    """The pauses of one wait. The limit counts from the first one."""

    def __init__(
        self,
        limit: float = 30.0,
        *,
        first: float = FIRST_PAUSE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`jitter` returns 0..1: requests that failed together must not all return together."""
        self._limit = limit
        self._next = first
        self._clock = clock
        self._jitter = jitter
        self._deadline: float | None = None

    def pause(self) -> float | None:
        """How long to pause before the next attempt; None when the limit is reached."""
        now = self._clock()
        if self._deadline is None:
            self._deadline = now + self._limit
        left = self._deadline - now
        if left <= 0:
            return None
        pause = self._next * (1 + self._jitter()) / 2
        self._next = min(2 * self._next, LONGEST_PAUSE_SECONDS)
        return min(pause, left)
