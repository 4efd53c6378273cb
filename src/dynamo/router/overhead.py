"""The time a request spends being routed, in seconds; the metrics read it."""

from __future__ import annotations

from itertools import cycle
from time import perf_counter

from dynamo.runtime.metrics import Histogram

EVERY = 8
"""One choice in so many is measured: reading the clock takes about as long as hashing a short prompt."""
_FINE = [1e-6 * 2**step for step in range(15)]
_COARSE = [1e-5 * 3**step for step in range(17)]


class Overhead:
    def __init__(self) -> None:
        self.hashing = Histogram(_FINE)
        """Hashing the prompt's blocks."""
        self.matching = Histogram(_COARSE)
        """Looking up which workers hold how much of it."""
        self.choosing = Histogram(_COARSE)
        """Everything else: candidates, load, cost and booking."""
        self.total = Histogram(_COARSE)
        self._turns = cycle((True, *(False,) * (EVERY - 1)))

    def timer(self) -> ChoiceTimer | None:
        """A timer for a choice that begins now; None for those that are not measured."""
        return ChoiceTimer(self) if next(self._turns) else None


class ChoiceTimer:
    """The moments of one choice, set by the router as it goes."""

    __slots__ = ("_began", "_overhead", "hashed", "looked_up", "matched")

    def __init__(self, overhead: Overhead) -> None:
        self._overhead = overhead
        self._began = self.hashed = self.looked_up = self.matched = perf_counter()

    def placed(self) -> None:
        """The request was placed without waiting."""
        total = perf_counter() - self._began
        hashing, matching = self.hashed - self._began, self.matched - self.looked_up
        self._overhead.hashing.observe(hashing)
        self._overhead.matching.observe(matching)
        self._overhead.choosing.observe(total - hashing - matching)
        self._overhead.total.observe(total)
