"""The last hour in figures, per model and in all: tokens per second, TTFT, queue, and the cached share of prompts."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from msgspec import Struct

from dynamo.frontend.fleet import Document
from dynamo.frontend.fleet.rows import LONGEST_NAME
from dynamo.frontend.measure.running import RunningRequests
from dynamo.serving.models import Models

INTERVAL_SECONDS = 10.0
KEPT = 360
"""Samples of each model: an hour of them."""
MOST_MODELS = 16
"""Models with a history of their own; all count in the sum."""
ALL = ""
"""The key of the sum of all models. No model has this name."""


class _Counts(Struct):
    """What has been counted since the start."""

    output_tokens: float = 0.0
    first_tokens: float = 0.0
    first_token_seconds: float = 0.0
    prompt_tokens: float = 0.0
    cached_tokens: float = 0.0
    waiting: float = 0.0

    def add(self, other: _Counts) -> None:
        for field in self.__struct_fields__:
            setattr(self, field, getattr(self, field) + getattr(other, field))


class FleetHistory:
    """A sample each `INTERVAL_SECONDS`; `tick` may be called more often."""

    def __init__(self, models: Models, requests: RunningRequests, clock: Callable[[], float] = time.time) -> None:
        self._models = models
        self._requests = requests
        self._clock = clock
        self._last: dict[str, _Counts] = {}
        self._at = 0.0
        self._samples: dict[str, deque[tuple[str, Document]]] = {}

    def tick(self) -> None:
        now = self._clock()
        if self._at and now - self._at < INTERVAL_SECONDS:
            return
        self._requests.settle()
        counts = self._count()
        if self._at:
            seconds = max(now - self._at, INTERVAL_SECONDS)
            for name, after in counts.items():
                if name in self._samples or len(self._samples) <= MOST_MODELS:
                    kept = self._samples.setdefault(name, deque(maxlen=KEPT))
                    kept.append((str(round(now)), _sample(self._last.get(name, _Counts()), after, seconds)))
        for name in [name for name in self._samples if name not in counts]:
            self._forget_one(name)
        self._last, self._at = counts, now

    def _forget_one(self, name: str) -> None:
        """A model that is gone loses its oldest sample, so that it is forgotten after an hour at most."""
        self._samples[name].popleft()
        if not self._samples[name]:
            del self._samples[name]

    def rows(self) -> Document:
        return {name[:LONGEST_NAME]: dict(samples) for name, samples in self._samples.items()}

    def _count(self) -> dict[str, _Counts]:
        counts = {ALL: _Counts()}
        metrics = self._requests.metrics
        for model in self._models.served():
            name = model.name
            # Only looked at: a series must not begin because there is a history.
            tokens = metrics.output_tokens.children.get((name,))
            first, prompts, cached = (
                family.children.get((name,))
                for family in (metrics.time_to_first, metrics.input_tokens, metrics.cached_tokens)
            )
            one = _Counts(
                output_tokens=tokens.value if tokens else 0,
                first_tokens=sum(first.counts) if first else 0,
                first_token_seconds=first.total if first else 0,
                prompt_tokens=prompts.total if prompts else 0,
                cached_tokens=cached.total if cached else 0,
                waiting=model.router.waiting,
            )
            counts[name] = one
            counts[ALL].add(one)
        return counts


def _sample(before: _Counts, after: _Counts, seconds: float) -> Document:
    row: Document = {
        "tokens": round(max(0.0, after.output_tokens - before.output_tokens) / seconds, 1),
        "waiting": round(after.waiting),
    }
    if (first := after.first_tokens - before.first_tokens) > 0:
        row["ttft_ms"] = round((after.first_token_seconds - before.first_token_seconds) / first * 1000, 1)
    if (prompts := after.prompt_tokens - before.prompt_tokens) > 0:
        row["cached"] = round(max(0.0, after.cached_tokens - before.cached_tokens) / prompts, 3)
    return row
