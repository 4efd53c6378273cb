"""From logits to tokens: all rows of a step that need nothing special in one pass, the others one by one."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.float32]
Rows = NDArray[np.float32]

_LIKELY = 256
"""A nucleus (`top_p`) is looked for among this many tokens first: sorting the whole vocabulary is slow."""
_GREEDY = 1e-5
"""Below this temperature the likeliest token is taken, as in vLLM."""


class Sampler:
    """How one request samples; it keeps the request's random numbers and what its penalties count."""

    __slots__ = (
        "bias_ids",
        "bias_values",
        "counts",
        "frequency",
        "greedy",
        "min_p",
        "plain",
        "presence",
        "random",
        "repetition",
        "seen",
        "temperature",
        "top_k",
        "top_p",
    )

    def __init__(
        self,
        *,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        min_p: float = 0.0,
        presence: float = 0.0,
        frequency: float = 0.0,
        repetition: float = 1.0,
        bias: dict[int, float] | None = None,
        seed: int | None = None,
    ) -> None:
        self.greedy = temperature < _GREEDY
        self.temperature = temperature
        self.top_p, self.top_k, self.min_p = top_p, top_k, min_p
        self.presence, self.frequency, self.repetition = presence, frequency, repetition
        self.bias_ids = np.fromiter(bias or (), np.int64)
        self.bias_values = np.fromiter((bias or {}).values(), np.float32)
        self.random = random.Random(seed).random
        self.counts: NDArray[np.float32] | None = None
        self.seen: NDArray[np.bool_] | None = None
        changes = bool(bias) or presence != 0 or frequency != 0 or repetition != 1
        self.plain = not changes and (self.greedy or (top_p >= 1 and top_k <= 0 and min_p <= 0))
        """It may be sampled together with others."""

    def see(self, prompt: Sequence[int], generated: Iterable[int], vocab_size: int) -> None:
        """Count the tokens so far: repetition looks at the prompt too, presence and frequency at the answer only.

        `generated` are those of an answer that began elsewhere: a random number was drawn there for each.
        """
        if self.presence or self.frequency:
            self.counts = np.zeros(vocab_size, np.float32)
        if self.repetition != 1:
            self.seen = np.zeros(vocab_size, np.bool_)
            self.seen[np.asarray(prompt, np.int64)] = True
        for id in generated:
            self.add(id)
            if not self.greedy:
                self.random()

    def add(self, id: int) -> None:
        if self.counts is not None:
            self.counts[id] += 1
        if self.seen is not None:
            self.seen[id] = True

    def sample(self, logits: Row, banned: Any = None, allowed: NDArray[np.bool_] | None = None) -> int:
        """One token, from a row that stays as it is."""
        row = logits.astype(np.float32, copy=True)
        if allowed is not None:
            row[: len(allowed)][~allowed] = -np.inf
            row[len(allowed) :] = -np.inf
        if banned is not None:
            row[banned] = -np.inf
        self._change(row)
        if self.greedy:
            return int(row.argmax())
        row /= self.temperature
        return self._draw(row)

    def _change(self, row: Row) -> None:
        if len(self.bias_ids):
            row[self.bias_ids] += self.bias_values
        if self.seen is not None:
            seen = row[self.seen]
            row[self.seen] = np.where(seen > 0, seen / self.repetition, seen * self.repetition)
        if self.counts is not None:
            row -= self.frequency * self.counts
            row -= self.presence * (self.counts > 0)

    def _draw(self, row: Row) -> int:
        ids: NDArray[np.intp] | None = None
        if 0 < self.top_k < len(row):
            ids = np.argpartition(row, -self.top_k)[-self.top_k :]
            row = row[ids]
        weights = np.exp(row - row.max())
        if self.min_p > 0:
            weights[weights < self.min_p] = 0
        if self.top_p < 1:
            kept = _nucleus(weights, self.top_p)
            weights = weights[kept]
            ids = kept if ids is None else ids[kept]
        chosen = _pick(weights, self.random())
        return chosen if ids is None else int(ids[chosen])


def sample_plain(logits: Rows, samplers: Sequence[Sampler]) -> list[int]:
    """One token per row, by samplers that are `plain`; the rows stay as they are."""
    best: list[int] = logits.argmax(axis=1).tolist()
    drawn = [at for at, sampler in enumerate(samplers) if not sampler.greedy]
    if not drawn:
        return best
    rows = logits[drawn] if len(drawn) < len(samplers) else logits
    temperatures = np.array([samplers[at].temperature for at in drawn], np.float32)[:, None]
    highest = rows[np.arange(len(drawn)), [best[at] for at in drawn]][:, None]
    weights = np.exp((rows - highest) / temperatures)
    for at, row in zip(drawn, weights, strict=True):
        best[at] = _pick(row, samplers[at].random())
    return best


def logprobs(logits: Row) -> Row:
    """The logarithms of the probabilities of all tokens, before anything that sampling changes."""
    shifted = logits - logits.max()
    shifted -= np.log(np.exp(shifted).sum(dtype=np.float64))
    result: Row = shifted.astype(np.float32, copy=False)
    return result


def highest(values: Row, count: int) -> list[int]:
    """The positions of the highest values, the highest first."""
    if count <= 0:
        return []
    count = min(count, len(values))
    top = np.argpartition(values, -count)[-count:] if count < len(values) else np.arange(count)
    ordered: list[int] = top[np.argsort(-values[top], kind="stable")].tolist()
    return ordered


def _nucleus(weights: Row, top_p: float) -> NDArray[np.intp]:
    """The fewest likeliest positions that together have `top_p` of the weight; at least one."""
    target = top_p * float(weights.sum(dtype=np.float64))
    likely = min(_LIKELY, len(weights))
    while True:
        top = np.argpartition(weights, -likely)[-likely:] if likely < len(weights) else np.arange(len(weights))
        top = top[np.argsort(-weights[top], kind="stable")]
        sums = np.cumsum(weights[top], dtype=np.float64)
        if sums[-1] >= target or likely == len(weights):
            return top[: int(np.searchsorted(sums, target)) + 1]
        likely = min(8 * likely, len(weights))


def _pick(weights: Row, share: float) -> int:
    """The position where the cumulated weights pass `share` of their sum."""
    sums = np.cumsum(weights, dtype=np.float64)
    return min(int(np.searchsorted(sums, share * sums[-1], side="right")), len(sums) - 1)
