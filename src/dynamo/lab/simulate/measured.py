"""What a simulation measures: exact values per request, and a histogram of the times between tokens."""

from __future__ import annotations

import math
from array import array
from collections import Counter

from msgspec import Struct

_PER_DECADE = 400
"""Buckets of the histogram per factor of ten: values are exact to 0.3 %."""


class Percentiles(Struct, frozen=True):
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


class Values:
    """Numbers kept one by one."""

    def __init__(self) -> None:
        self._values = array("d")

    def add(self, value: float) -> None:
        self._values.append(value)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def last(self) -> float:
        return self._values[-1]

    def distribution(self, unit: float = 1.0) -> Percentiles | None:
        """In units of `unit`; None of no values."""
        if not self._values:
            return None
        ordered = [value / unit for value in sorted(self._values)]
        p50, p90, p99 = (ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.9, 0.99))
        return Percentiles(math.fsum(ordered) / len(ordered), p50, p90, p99, ordered[-1])


class WeightedHistogram:
    """Numbers above zero with weights, in buckets of equal ratio, however many there are."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._sum = 0.0
        self._weight = 0
        self._max = 0.0

    def add(self, value: float, weight: int = 1) -> None:
        self._counts[math.floor(math.log10(value) * _PER_DECADE) if value > 0 else -(1 << 30)] += weight
        self._sum += value * weight
        self._weight += weight
        self._max = max(self._max, value)

    def distribution(self, unit: float = 1.0) -> Percentiles | None:
        """In units of `unit`; None of no values."""
        if not self._weight:
            return None
        figures = (self._sum / self._weight, *map(self._quantile, (0.5, 0.9, 0.99)), self._max)
        return Percentiles(*(figure / unit for figure in figures))

    def _quantile(self, share: float) -> float:
        wanted, seen = share * self._weight, 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen > wanted:
                return min(self._max, 10 ** ((bucket + 0.5) / _PER_DECADE)) if bucket > -(1 << 30) else 0.0
        return self._max
