"""Is a tier worth it? Measured seconds per token of restoring, against those of computing. Pure: the clock is given."""

from __future__ import annotations

from msgspec import Struct, field

from dynamo.kv.prompt_cost import Pace

_TRIAL_SECONDS = 60.0
"""A tier that was slower than computing is tried again after this time."""
_INVESTED_SHARE = 0.05
"""Storing may cost this share of the time spent on prompts before it has saved anything,"""
_INVESTED_SECONDS = 1.0
"""and this time beside."""


class TierCosts(Struct):
    """What one tier has done, cost and saved."""

    restoring: Pace = field(default_factory=Pace)
    restored_tokens: int = 0
    restored_bytes: int = 0
    saved_seconds: float = 0.0
    """What computing the restored tokens would have taken."""
    stored_tokens: int = 0
    stored_bytes: int = 0
    store_seconds: float = 0.0
    hits: int = 0
    misses: int = 0
    """Segments that were looked for."""
    failures: int = 0
    """Damaged, not readable, not writable, or not restorable."""
    retry_at: float = 0.0

    @property
    def restore_seconds(self) -> float:
        return self.restoring.spent

    def restored(self, tokens: int, bytes: int, seconds: float, prefill: Pace, now: float) -> None:
        self.restored_tokens += tokens
        self.restored_bytes += bytes
        self.saved_seconds += prefill.seconds(tokens)
        self.measured(tokens, seconds, prefill, now)

    def measured(self, tokens: int, seconds: float, prefill: Pace, now: float) -> None:
        """Restoring `tokens` took, or would have taken, `seconds`."""
        self.restoring.add(tokens, seconds)
        if not self.worthwhile(prefill):
            self.retry_at = now + _TRIAL_SECONDS

    def stored(self, tokens: int, bytes: int, seconds: float) -> None:
        self.stored_tokens += tokens
        self.stored_bytes += bytes
        self.store_seconds += seconds

    def worthwhile(self, prefill: Pace) -> bool:
        """Whether restoring is faster than computing, as far as is known."""
        ours, theirs = self.restoring.seconds_per_token, prefill.seconds_per_token
        return ours is None or theirs is None or ours < theirs

    def take_trial(self, prefill: Pace, now: float) -> bool:
        """Whether a tier that was slower is to be measured again now; the next trial then comes later."""
        if self.worthwhile(prefill) or now < self.retry_at:
            return False
        self.retry_at = now + _TRIAL_SECONDS
        return True

    def may_store(self, prefill: Pace) -> bool:
        """Storing stops where restoring is slower, and where it costs more than it has saved and a small advance."""
        advance = _INVESTED_SECONDS + _INVESTED_SHARE * prefill.spent
        spent = self.store_seconds + self.restore_seconds
        return self.worthwhile(prefill) and spent <= self.saved_seconds + advance

    def weight(self, prefill: Pace) -> float | None:
        """How much of a computed token a restored one is worth, 0 to 1; None while not measured."""
        ours, theirs = self.restoring.seconds_per_token, prefill.seconds_per_token
        if ours is None or theirs is None:
            return None
        return max(0.0, 1.0 - ours / theirs) if theirs > 0 else 0.0
