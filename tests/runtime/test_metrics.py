from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from dynamo.runtime.exposition import exposition
from dynamo.runtime.metrics import (
    Family,
    Histogram,
    Metric,
    MetricFamily,
    Number,
    Sample,
    families,
    log_buckets,
    merged,
)

VALUES = st.floats(min_value=0, max_value=1e6, allow_nan=False)


@given(st.lists(VALUES, max_size=50))
def test_each_bucket_counts_the_values_up_to_its_bound(values: list[float]) -> None:
    histogram = Histogram([0.0, 1.0, 10.0, 1000.0])
    for value in values:
        histogram.observe(value)
    samples = {sample.labels.get("le", sample.name): sample.value for sample in histogram.samples("h", {})}
    for bound in (0.0, 1.0, 10.0, 1000.0):
        assert samples[repr(bound)] == sum(value <= bound for value in values)
    assert samples["+Inf"] == samples["h_count"] == len(values)
    assert math.isclose(samples["h_sum"], sum(values), abs_tol=1e-6)


def test_buckets_are_those_dashboards_know() -> None:
    assert log_buckets(1, 512, 10) == [0, 2, 4, 8, 16, 32, 64, 130, 260, 510]
    assert log_buckets(0.001, 2, 13)[:4] == [0, 0.0019, 0.0035, 0.0067]
    assert len(log_buckets(0.001, 480, 18)) == 18


@given(st.floats(0.001, 10), st.floats(20, 1e6), st.integers(3, 40))
def test_buckets_rise(low: float, high: float, count: int) -> None:
    bounds = log_buckets(low, high, count)
    assert bounds == sorted(set(bounds))
    assert bounds[0] == 0


@given(st.text(max_size=30))
def test_any_label_value_survives_the_exposition(value: str) -> None:
    family = Family("counter", "things_total", "Things", ("model",), Number)
    family.at(value).value += 3
    text = exposition([family.snapshot()]).decode("utf-8", "surrogatepass")
    (parsed,) = text_string_to_metric_families(text)
    assert [(sample.labels, sample.value) for sample in parsed.samples] == [({"model": value}, 3)]


def test_another_unit_changes_bounds_and_sum_alike() -> None:
    histogram = Histogram([0.0005, 0.064, 0.1])
    histogram.observe(0.05)
    samples = {sample.labels.get("le", sample.name): sample.value for sample in histogram.samples("h", {}, 1000)}
    assert samples == {"0.5": 0, "64.0": 1, "100.0": 1, "+Inf": 1, "h_count": 1, "h_sum": 50}


class Shelf:
    def __init__(self, books: dict[str, int]) -> None:
        self.books = books


BOOKS: Metric[Shelf] = Metric("gauge", "books", "Books on a shelf", lambda shelf: len(shelf.books) or None)
PAGES: Metric[Shelf] = Metric(
    "counter", "pages_total", "Pages of a book", lambda shelf: {(b,): n for b, n in shelf.books.items()}, ("book",)
)


def test_a_metric_is_read_from_each_of_its_owners_with_their_labels() -> None:
    shelves = [({"shelf": "a"}, Shelf({"x": 3, "y": 4})), ({"shelf": "b"}, Shelf({}))]
    books, pages = families((BOOKS, PAGES), shelves, "library_")
    assert books.samples == [Sample("library_books", {"shelf": "a"}, 2)]
    assert books == MetricFamily("library_books", "Books on a shelf", "gauge", books.samples)
    assert (pages.name, pages.kind) == ("library_pages", "counter")
    assert pages.samples == [
        Sample("library_pages_total", {"shelf": "a", "book": "x"}, 3),
        Sample("library_pages_total", {"shelf": "a", "book": "y"}, 4),
    ]


def test_families_of_one_name_are_merged() -> None:
    one, other = (BOOKS.family([({"shelf": name}, Shelf({"x": 3}))]) for name in "ab")
    [both] = merged([one, other])
    assert [sample.labels["shelf"] for sample in both.samples] == ["a", "b"]
