"""What a prompt costs: its tokens where nobody has counted them yet, and the seconds that it takes, from measurements.

What a worker sustains under load is another question, which the planner's `capacity` answers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

SLOWEST_SECONDS_PER_TOKEN = 0.02
"""What a slow engine takes to compute a token of a prompt: a bound where nothing was measured."""
FADING = 0.98
"""The weight of a sample shrinks by this with each later one: about the last 50 count."""
_REACH = 2.0
"""A line says nothing about prompts that are longer than its longest sample, or shorter than its shortest one, by more
than this factor."""
_PERIOD = 50
"""Samples after which the shortest one is looked for anew; that of the last period counts too."""
_MEMORY_TOKENS = 8192.0
"""A measurement of a pace fades as this number of tokens follows it."""
_LEAST_MEASURED = 16
"""Fewer tokens of prompts say little about the time per token."""
_PROMPTS = ("prompt", "messages", "content", "text", "input", "token_ids")


def estimate_tokens(request: Any) -> int:
    """One token per four characters; token ids are counted."""
    tokens, parts = 0, [request]
    while parts:
        part = parts.pop()
        if isinstance(part, str):
            tokens += len(part) // 4 + 1
        elif isinstance(part, Mapping):
            parts += [part[key] for key in _PROMPTS if key in part]
        elif isinstance(part, list):
            if part and isinstance(part[0], int):
                tokens += len(part)
            else:
                parts += part
    return tokens


class Pace(Struct):
    """Seconds as a multiple of the tokens: all that is needed where times per token are compared."""

    seconds_per_token: float | None = None
    """None without a sample."""
    spent: float = 0.0
    """Seconds of all samples."""

    def add(self, tokens: int, seconds: float) -> None:
        self.spent += seconds
        pace, before = seconds / tokens, self.seconds_per_token
        share = min(1.0, max(0.1, tokens / _MEMORY_TOKENS))
        self.seconds_per_token = pace if before is None else before + share * (pace - before)

    def add_step(self, prompt_tokens: int, tokens: int, seconds: float) -> None:
        """A step computed `tokens`, of which these were of prompts."""
        if prompt_tokens >= _LEAST_MEASURED:
            self.add(prompt_tokens, seconds * prompt_tokens / tokens)

    def seconds(self, tokens: float) -> float:
        """The expected time; 0 without a sample."""
        return tokens * (self.seconds_per_token or 0.0)


class LineFit:
    """Seconds as a line over tokens, fitted to weighted samples by least squares; neither part is negative.

    While all samples are of one length, time is taken to grow in `proportion`, or else to be always the same.
    """

    def __init__(self, *, proportion: bool) -> None:
        self._proportion = proportion
        self.samples = 0
        self.latest = float("-inf")
        """When the last sample came."""
        self._longest = 0
        self._shortest = self._shortest_before = math.inf
        """In this period and in the last one. Too short a time for a longer prompt leads to a sample, which corrects
        it; a wrong time for a shorter one may not, and has to be forgotten."""
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def add(self, tokens: int, seconds: float, now: float) -> None:
        self.samples += 1
        self.latest = now
        if self.samples % _PERIOD == 0:
            self._shortest, self._shortest_before = math.inf, self._shortest
        self._shortest = min(self._shortest, tokens)
        self._longest = max(self._longest, tokens)
        self._weight = self._weight * FADING + 1.0
        self._x = self._x * FADING + tokens
        self._y = self._y * FADING + seconds
        self._xx = self._xx * FADING + tokens * tokens
        self._xy = self._xy * FADING + tokens * seconds

    def reaches(self, tokens: int) -> bool:
        """Whether the samples say something about prompts of `tokens` tokens."""
        return self.shortest <= _REACH * tokens and tokens <= _REACH * self._longest

    @property
    def shortest(self) -> float:
        """The least tokens of a sample that is not forgotten; infinite without any."""
        return min(self._shortest, self._shortest_before)

    def seconds(self, tokens: float) -> float | None:
        """The expected time; None without a sample."""
        if not self.samples:
            return None
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        spread = self._xx / self._weight - mean_x * mean_x
        if spread <= 1e-9 * max(1.0, mean_x * mean_x):
            return mean_y * tokens / mean_x if self._proportion and mean_x else mean_y
        slope = max(0.0, (self._xy / self._weight - mean_x * mean_y) / spread)
        start = mean_y - slope * mean_x
        if start < 0:
            slope, start = self._xy / self._xx, 0.0
        return start + slope * tokens
