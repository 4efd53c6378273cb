"""Histograms of the time, in seconds, it takes to render and tokenize a prompt."""

from __future__ import annotations

from msgspec import Struct, field

from dynamo.runtime.metrics import Histogram


def _without_buckets() -> Histogram:
    return Histogram(())


class PromptTimes(Struct):
    template: Histogram = field(default_factory=_without_buckets)
    """Messages into text."""
    tokenize: Histogram = field(default_factory=_without_buckets)
    """Text into token ids, including the hop to a thread for long texts."""
