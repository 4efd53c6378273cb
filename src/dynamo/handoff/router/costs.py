"""What computing a prompt and handing it over take, learned from live requests."""

from __future__ import annotations

import math

_MEMORY = 0.98
"""The weight of a sample shrinks by this with each later one: about the last 50 count."""
_REACH = 2.0
"""A line says nothing about prompts that are longer than its longest sample, or shorter than its shortest one, by more
than this factor."""
_PERIOD = 50
"""Samples after which the shortest one is looked for anew; that of the last period counts too."""
STALE_SECONDS = 30.0
"""A cost without a sample for this long is measured again, so that one bad moment does not decide for ever."""


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
        self._weight = self._weight * _MEMORY + 1.0
        self._x = self._x * _MEMORY + tokens
        self._y = self._y * _MEMORY + seconds
        self._xx = self._xx * _MEMORY + tokens * tokens
        self._xy = self._xy * _MEMORY + tokens * seconds

    def reaches(self, tokens: int) -> bool:
        """Whether the samples say something about so many tokens."""
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


class PromptMix:
    """The prompts that take most of the computing: means over the latest requests, weighted by uncached tokens."""

    def __init__(self) -> None:
        self._weight = self._uncached = self._prompt = 0.0

    def add(self, prompt_tokens: int, uncached_tokens: int) -> None:
        self._weight = self._weight * _MEMORY + uncached_tokens
        self._uncached = self._uncached * _MEMORY + uncached_tokens * uncached_tokens
        self._prompt = self._prompt * _MEMORY + uncached_tokens * prompt_tokens

    def typical(self) -> tuple[int, int] | None:
        """Tokens of a prompt, and how many of them are not cached; None if all were cached."""
        if not self._weight:
            return None
        return round(self._prompt / self._weight), round(self._uncached / self._weight)


class HandoffCosts:
    """Of one model, over all its workers."""

    def __init__(self) -> None:
        self.mix = PromptMix()
        self.prefill = LineFit(proportion=True)
        """By tokens that the prefill worker had to compute, where it had nothing else to compute."""
        self.transfer = LineFit(proportion=False)
        """By tokens of the prompt: from the prefill worker's answer to the first token at the decode worker."""

    def known(self, prompt_tokens: int, uncached_tokens: int) -> bool:
        """Whether it is known which takes longer."""
        if not self.transfer.reaches(prompt_tokens):
            return False
        if self.prefill.reaches(uncached_tokens):
            return True
        # Too short to be known; computing even the shortest known prompt takes no longer than handing this one over.
        shortest = self.prefill.shortest
        return uncached_tokens < shortest < math.inf and self.gain(prompt_tokens, shortest) <= 0

    def gain(self, prompt_tokens: int, uncached_tokens: float) -> float:
        """Seconds that computing takes longer than handing over; negative if it is faster."""
        prefill, transfer = self.prefill.seconds(uncached_tokens), self.transfer.seconds(prompt_tokens)
        return 0.0 if prefill is None or transfer is None else prefill - transfer

    def handed_over(self, prompt_tokens: int, seconds: float, others: int, now: float) -> None:
        """Learn from a hand-off. The decode worker may have computed so many `others`' prompt tokens before it."""
        wait = self.prefill.seconds(others) if others else 0.0
        if wait is None:
            wait = seconds
        if wait <= seconds / 2:
            self.transfer.add(prompt_tokens, seconds - wait / 2, now)
        elif not self.transfer.reaches(prompt_tokens):
            # All workers may be as busy, because nothing is split yet. Too short a time is corrected by the splits
            # that it leads to; too long a time would prevent them.
            self.transfer.add(prompt_tokens, max(0.0, seconds - wait), now)

    def fresh(self, now: float) -> bool:
        return now - self.transfer.latest < STALE_SECONDS
