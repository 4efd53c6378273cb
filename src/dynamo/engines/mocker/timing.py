"""How long an iteration would have taken: curves fitted to a real engine, in seconds."""

from __future__ import annotations

from typing import Protocol

from .args import MockerArgs


class Timing(Protocol):
    def prefill(self, new_tokens: int) -> float:
        """Time to compute this many prompt tokens."""

    def decode(self, sequences: int, context_tokens: float) -> float:
        """Time to produce one token for each of `sequences`, which together read `context_tokens`."""

    def mixed(self, new_tokens: int, sequences: int, context_tokens: int) -> float:
        """Time of one iteration that does both."""


class Scale:
    """Seconds per modelled millisecond, which a speed-up shrinks and a role may take out altogether."""

    __slots__ = ("decode", "prefill")

    def __init__(self, args: MockerArgs) -> None:
        seconds = 1e-3 / args.speedup_ratio if args.speedup_ratio else 0.0
        self.prefill = seconds
        faster = args.decode_speedup_ratio
        # A prefill worker hands over after its first token.
        self.decode = seconds / faster if faster and args.disaggregation_mode != "prefill" else 0.0


class PolynomialTiming:
    """The published fit: quadratic in new prompt tokens, and in how full the cache is."""

    def __init__(self, args: MockerArgs) -> None:
        self._capacity = args.capacity_tokens
        self._scale = Scale(args)

    def prefill(self, new_tokens: int) -> float:
        if not new_tokens:
            return 0.0
        return self._scale.prefill * ((4.209989e-07 * new_tokens + 1.518344e-02) * new_tokens + 16.50142)

    def decode(self, sequences: int, context_tokens: float) -> float:
        if not sequences:
            return 0.0
        fill = context_tokens / self._capacity if context_tokens < self._capacity else 1.0
        return self._scale.decode * max(1.0, (-25.74 * fill + 54.01) * fill + 5.74)

    def mixed(self, new_tokens: int, sequences: int, context_tokens: int) -> float:
        return self.prefill(new_tokens) + self.decode(sequences, context_tokens)
