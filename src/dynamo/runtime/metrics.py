"""Metrics: what each is, declared once beside its owner, and the counters and histograms that cost a list access.

A metric whose value its owner has anyway is a `Metric` in a table, which reads it when somebody asks. A `Family` keeps
values that nobody else has. One thread writes and reads them all, so they need no lock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, Literal, TypeVar

from msgspec import Struct

Kind = Literal["counter", "gauge", "histogram"]
Labels = dict[str, str]


class Sample(Struct, array_like=True):
    name: str
    labels: Labels
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

    def samples(self, name: str, labels: Labels, scale: float = 1.0) -> Iterator[Sample]:
        count = 0
        bounds = [repr(float(f"{bound * scale:.6g}")) for bound in self.bounds]
        for bound, more in zip([*bounds, "+Inf"], self.counts, strict=True):
            count += more
            yield Sample(f"{name}_bucket", {**labels, "le": bound}, count)
        yield Sample(f"{name}_count", labels, count)
        yield Sample(f"{name}_sum", labels, self.total * scale)


Value = float | Number | Histogram
Owner = TypeVar("Owner")
Instrument = TypeVar("Instrument", Number, Histogram)


class Metric(Struct, Generic[Owner], frozen=True):
    """One metric of every owner of a kind."""

    kind: Kind
    name: str
    help: str
    read: Callable[[Owner], Value | Mapping[tuple[str, ...], Value] | None]
    """The value, or None where there is none now; of a metric with `labels`, the values by those of its labels."""
    labels: tuple[str, ...] = ()
    scale: float = 1.0
    """The factor of a histogram: 1000 turns seconds into milliseconds."""

    def family(self, owners: Iterable[tuple[Labels, Owner]], prefix: str = "") -> MetricFamily:
        """The labels of an owner are on all its samples."""
        name = prefix + self.name
        samples: list[Sample] = []
        for own, owner in owners:
            value = self.read(owner)
            if isinstance(value, Mapping):
                for values, one in value.items():
                    samples += _samples(name, {**own, **dict(zip(self.labels, values, strict=True))}, one, self.scale)
            elif value is not None:
                samples += _samples(name, own, value, self.scale)
        return MetricFamily(name.removesuffix("_total"), self.help, self.kind, samples)


def families(
    table: Iterable[Metric[Owner]], owners: Iterable[tuple[Labels, Owner]], prefix: str = ""
) -> list[MetricFamily]:
    """All metrics of a table, each with its samples of all owners."""
    owners = list(owners)
    return [metric.family(owners, prefix) for metric in table]


class Family(Generic[Instrument]):
    """A metric that keeps its values itself: an instrument for each set of label values that occurred."""

    def __init__(
        self, kind: Kind, name: str, help: str, labels: tuple[str, ...], make: Callable[[], Instrument]
    ) -> None:
        self.children: dict[tuple[str, ...], Instrument] = {}
        self._labels = labels
        self._make: Callable[[], Instrument] = make
        self._metric: Metric[dict[tuple[str, ...], Instrument]] = Metric(
            kind, name, help, lambda children: children, labels
        )

    def at(self, *values: str) -> Instrument:
        child = self.children.get(values)
        if child is None:
            assert len(values) == len(self._labels)
            child = self.children[values] = self._make()
        return child

    def snapshot(self) -> MetricFamily:
        return self._metric.family([({}, self.children)])


def merged(snapshots: Iterable[MetricFamily]) -> list[MetricFamily]:
    """Each family once, with the samples of all of its name."""
    found: dict[str, MetricFamily] = {}
    for one in snapshots:
        found.setdefault(one.name, MetricFamily(one.name, one.help, one.kind, [])).samples.extend(one.samples)
    return list(found.values())


def log_buckets(low: float, high: float, count: int) -> list[float]:
    """0, then up to `count - 1` bounds to `high`, spaced evenly on a logarithmic scale above `low`."""
    steps = [low * (high / low) ** (step / (count - 1)) for step in range(1, count)]
    return [0.0, *sorted({float(f"{bound:.1e}") for bound in steps})]


def _samples(name: str, labels: Labels, value: Value, scale: float) -> Iterable[Sample]:
    if isinstance(value, Histogram):
        return value.samples(name, labels, scale)
    return (Sample(name, labels, value.value if isinstance(value, Number) else value),)
