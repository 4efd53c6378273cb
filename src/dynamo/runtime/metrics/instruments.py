"""Counters, gauges and histograms that cost a list access: one thread writes them, so they need no lock."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Literal, TypeVar

from msgspec import Struct

Kind = Literal["counter", "gauge", "histogram"]


class Sample(Struct, array_like=True):
    name: str
    labels: dict[str, str]
    value: float


class MetricFamily(Struct, array_like=True):
    """One family at one moment, as processes exchange it."""

    name: str
    help: str
    kind: str
    samples: list[Sample]


class Number:
    """A counter or a gauge; its owner adds to `value`."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def samples(self, name: str, labels: dict[str, str]) -> Iterator[Sample]:
        yield Sample(name, labels, self.value)


class Histogram:
    """`counts[i]` counts the values at most `bounds[i]` and above the bound before; the last count has no bound."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = list(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def samples(self, name: str, labels: dict[str, str], scale: float = 1.0) -> Iterator[Sample]:
        """`scale` converts the unit of the values: 1000 turns seconds into milliseconds."""
        count = 0
        bounds = [repr(float(f"{bound * scale:.6g}")) for bound in self.bounds]
        for bound, more in zip([*bounds, "+Inf"], self.counts, strict=True):
            count += more
            yield Sample(f"{name}_bucket", {**labels, "le": bound}, count)
        yield Sample(f"{name}_count", labels, count)
        yield Sample(f"{name}_sum", labels, self.total * scale)


Instrument = TypeVar("Instrument", Number, Histogram)


class Family(Generic[Instrument]):
    """One metric name: an instrument for each set of label values that occurred."""

    def __init__(
        self, name: str, help: str, kind: Kind, labels: tuple[str, ...], make: Callable[[], Instrument]
    ) -> None:
        self.name = name
        self._help = help
        self._kind = kind
        self._labels = labels
        self._make: Callable[[], Instrument] = make
        self._children: dict[tuple[str, ...], Instrument] = {}

    def at(self, *values: str) -> Instrument:
        child = self._children.get(values)
        if child is None:
            assert len(values) == len(self._labels)
            child = self._children[values] = self._make()
        return child

    def snapshot(self) -> MetricFamily:
        samples = [
            sample
            for values, child in self._children.items()
            for sample in child.samples(self.name, dict(zip(self._labels, values, strict=True)))
        ]
        return MetricFamily(self.name.removesuffix("_total"), self._help, self._kind, samples)


def log_buckets(low: float, high: float, count: int) -> list[float]:
    """0, then up to `count - 1` bounds to `high`, spaced evenly on a logarithmic scale above `low`."""
    steps = [low * (high / low) ** (step / (count - 1)) for step in range(1, count)]
    return [0.0, *sorted({float(f"{bound:.1e}") for bound in steps})]
