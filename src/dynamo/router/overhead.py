"""What a choice costs the request that waits for it, in seconds. Whoever publishes metrics reads it."""

from __future__ import annotations

from itertools import cycle
from time import perf_counter

from dynamo.runtime.instruments import Histogram

EVERY = 8
"""Of so many choices one is measured: looking at the clock costs about as much as hashing a short prompt."""
_FINE = [1e-6 * 2**step for step in range(15)]
_COARSE = [1e-5 * 3**step for step in range(17)]


class Overhead:
    def __init__(self) -> None:
        self.hashing = Histogram(_FINE)
        """The prompt's blocks into hashes."""
        self.matching = Histogram(_COARSE)
        """Who has how much of it."""
        self.choosing = Histogram(_COARSE)
        """Everything else: the candidates, their load and cost, the booking."""
        self.total = Histogram(_COARSE)
        self._turns = cycle((True, *(False,) * (EVERY - 1)))

    def watch(self) -> ChoiceTimer | None:
        """For a choice that begins now; None for those that are not measured."""
        return ChoiceTimer(self) if next(self._turns) else None


class ChoiceTimer:
    """The moments of one choice, set by whoever makes it."""

    __slots__ = ("_began", "_overhead", "hashed", "looked_up", "matched")

    def __init__(self, overhead: Overhead) -> None:
        self._overhead = overhead
        self._began = self.hashed = self.looked_up = self.matched = perf_counter()

    def placed(self) -> None:
        """The request has its place, and did not wait for it."""
        total = perf_counter() - self._began
        hashing, matching = self.hashed - self._began, self.matched - self.looked_up
        self._overhead.hashing.observe(hashing)
        self._overhead.matching.observe(matching)
        self._overhead.choosing.observe(total - hashing - matching)
        self._overhead.total.observe(total)
