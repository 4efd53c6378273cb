"""What computing a prompt and handing it over take, learned from live requests."""

from __future__ import annotations

import math

from dynamo.kv.prompt_cost import FADING, LineFit

STALE_SECONDS = 30.0
"""A cost without a sample for this long is measured again, so that one bad moment does not decide for ever."""


class PromptMix:
    """The prompts that take most of the computing: means over the latest requests, weighted by uncached tokens."""

    def __init__(self) -> None:
        self._weight = self._uncached = self._prompt = 0.0

    def add(self, prompt_tokens: int, uncached_tokens: int) -> None:
        self._weight = self._weight * FADING + uncached_tokens
        self._uncached = self._uncached * FADING + uncached_tokens * uncached_tokens
        self._prompt = self._prompt * FADING + uncached_tokens * prompt_tokens

    def typical(self) -> tuple[int, int] | None:
        """Tokens of a prompt, and how many of them are not cached; None if all were cached."""
        if not self._weight:
            return None
        return round(self._prompt / self._weight), round(self._uncached / self._weight)


class HandoffCosts:
    """What hand-offs of one model cost, over all its workers."""

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
        """Learn from a hand-off. The decode worker may have computed `others` prompt tokens before it."""
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
