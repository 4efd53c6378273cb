"""What computing a prompt and handing it over take, learned from live requests."""

from __future__ import annotations

_MEMORY = 0.98
"""The weight of a sample shrinks by this with each later one: about the last 50 count."""
_REACH = 2.0
"""A line says nothing about prompts that are longer than its longest sample by more than this factor."""
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
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def add(self, tokens: int, seconds: float, now: float) -> None:
        self.samples += 1
        self.latest = now
        self._longest = max(self._longest, tokens)
        self._weight = self._weight * _MEMORY + 1.0
        self._x = self._x * _MEMORY + tokens
        self._y = self._y * _MEMORY + seconds
        self._xx = self._xx * _MEMORY + tokens * tokens
        self._xy = self._xy * _MEMORY + tokens * seconds

    def reaches(self, tokens: int) -> bool:
        """Whether the samples say something about so many tokens."""
        return tokens <= _REACH * self._longest

    def seconds(self, tokens: int) -> float | None:
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


class HandoffCosts:
    """Of one model, over all its workers."""

    def __init__(self) -> None:
        self.prefill = LineFit(proportion=True)
        """By tokens that the prefill worker had to compute, where it had nothing else to compute."""
        self.transfer = LineFit(proportion=False)
        """By tokens of the prompt: from the prefill worker's answer to the first token at the decode worker."""

    def known(self, prompt_tokens: int) -> bool:
        return bool(self.prefill.samples) and self.transfer.reaches(prompt_tokens)

    def fresh(self, now: float) -> bool:
        return now - self.transfer.latest < STALE_SECONDS
