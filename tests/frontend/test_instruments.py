from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from dynamo.frontend.instruments import Family, Histogram, Number, Sample, Snapshot, log_buckets
from dynamo.frontend.metrics import FrontendMetrics, clean_prefix, exposition
from dynamo.frontend.siblings import merge
from dynamo.protocols.card import ModelCard

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
    family = Family("things_total", "Things", "counter", ("model",), Number)
    family.at(value).value += 3
    text = exposition([family.snapshot()]).decode("utf-8", "surrogatepass")
    (parsed,) = text_string_to_metric_families(text)
    assert [(sample.labels, sample.value) for sample in parsed.samples] == [({"model": value}, 3)]


def test_the_exposition_can_be_read_by_prometheus() -> None:
    metrics = FrontendMetrics()
    metrics.model("m").time_to_first.observe(0.5)
    text = exposition(metrics.snapshot([ModelCard(name="m", model_type=3, context_length=7)])).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["dynamo_frontend_time_to_first_token_seconds"].type == "histogram"
    assert families["dynamo_frontend_requests"].type == "counter"
    assert families["dynamo_frontend_model_context_length"].samples[0].value == 7


def test_processes_are_told_apart() -> None:
    one = [Snapshot("a", "A", "counter", [Sample("a_total", {"model": "m"}, 1)])]
    other = [Snapshot("a", "A", "counter", [Sample("a_total", {"model": "m"}, 2)]), Snapshot("b", "B", "gauge", [])]
    merged = merge({"0": one, "1": other})
    assert [family.name for family in merged] == ["a", "b"]
    assert [(sample.labels["http_worker"], sample.value) for sample in merged[0].samples] == [("0", 1), ("1", 2)]


def test_a_prefix_is_made_to_fit() -> None:
    assert clean_prefix("nv llm-http") == "nv_llm_http"
    assert clean_prefix("1st") == "_1st"
    with pytest.raises(ValueError, match="--metrics-prefix"):
        clean_prefix("--")
