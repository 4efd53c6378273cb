"""The circuit breaker of one instance: whether it gets requests after failures. It knows no time but its clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum

FAILURES = 5
"""Engine errors in a row that open a breaker."""
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0


class BreakerState(Enum):
    CLOSED = "closed"
    """Gets requests."""
    OPEN = "open"
    """Gets none until its pause is over and a probe was answered."""
    HALF_OPEN = "half-open"
    """Gets one request, whose outcome decides."""


class Breaker:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.state = BreakerState.CLOSED
        self.pause = FIRST_PAUSE_SECONDS
        """Until the next probe; doubles while it stays open."""
        self._clock = clock
        self._errors = 0
        self._on_trial = False
        self._opened = 0.0

    @property
    def allows(self) -> bool:
        return self.state is BreakerState.CLOSED or (self.state is BreakerState.HALF_OPEN and not self._on_trial)

    @property
    def probe_due(self) -> bool:
        return self.state is BreakerState.OPEN and self._clock() - self._opened >= self.pause

    def open(self) -> bool:
        """The instance cannot be reached, broke a stream, hangs, or failed a probe; returns whether it was not open."""
        was = self.state
        if was is BreakerState.OPEN and not self.probe_due:
            return False  # another stream of the same failure
        self.pause = FIRST_PAUSE_SECONDS if was is BreakerState.CLOSED else min(2 * self.pause, LONGEST_PAUSE_SECONDS)
        self.state, self._opened, self._on_trial, self._errors = BreakerState.OPEN, self._clock(), False, 0
        return True

    def error(self) -> bool:
        """The engine failed a request; returns whether that opened the breaker."""
        self._errors += 1
        if self.state is BreakerState.HALF_OPEN or self._errors >= FAILURES:
            return self.open()
        return False

    def half_open(self) -> None:
        """The instance can be reached, but only a request can show that it works."""
        self.state, self._on_trial = BreakerState.HALF_OPEN, False

    def sent(self) -> None:
        """A request was sent to the instance."""
        self._on_trial = self.state is BreakerState.HALF_OPEN

    def close(self) -> None:
        """A request or probe was answered."""
        self.state, self._errors, self._on_trial, self.pause = BreakerState.CLOSED, 0, False, FIRST_PAUSE_SECONDS
