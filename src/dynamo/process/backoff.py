"""How long whatever failed waits before it tries again: growing pauses, with jitter and within a limit if wanted."""

from __future__ import annotations

import time
from collections.abc import Callable


class Backoff:
    """The pauses of one wait: the first one, then each `factor` times the one before, up to the longest."""

    __slots__ = ("_factor", "_first", "_jitter", "_longest", "attempts", "next")

    def __init__(
        self, first: float, longest: float, *, factor: float = 2.0, jitter: Callable[[], float] | None = None
    ) -> None:
        """`jitter` returns 0..1 and makes a pause half as long to full: those that failed together must not all return
        together."""
        self.next = first
        """Seconds of the next pause, without jitter."""
        self.attempts = 0
        """Pauses taken since the start or the last `reset`."""
        self._first = first
        self._longest = longest
        self._factor = factor
        self._jitter = jitter

    def pause(self) -> float:
        """How long to pause before the next attempt."""
        pause = self.next if self._jitter is None else self.next * (1 + self._jitter()) / 2
        self.next = min(self._factor * self.next, self._longest)
        self.attempts += 1
        return pause

    def reset(self) -> None:
        """An attempt succeeded: the next pause is the first one again."""
        self.next, self.attempts = self._first, 0


class LimitedBackoff:
    """A back-off that ends. The limit, in seconds, counts from the first pause."""

    def __init__(self, backoff: Backoff, limit: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._backoff = backoff
        self._limit = limit
        self._clock = clock
        self._deadline: float | None = None

    def pause(self) -> float | None:
        """How long to pause before the next attempt; None when the limit is reached."""
        now = self._clock()
        if self._deadline is None:
            self._deadline = now + self._limit
        left = self._deadline - now
        return min(self._backoff.pause(), left) if left > 0 else None
