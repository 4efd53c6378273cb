from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dynamo.frontend.measure.metrics import FrontendMetrics, clean_prefix
from dynamo.frontend.siblings import merge
from dynamo.protocols.card import ModelCard
from dynamo.runtime.exposition import exposition
from dynamo.runtime.metrics import MetricFamily, Sample


def test_the_exposition_can_be_read_by_prometheus() -> None:
    metrics = FrontendMetrics()
    metrics.model("m").time_to_first.observe(0.5)
    text = exposition(metrics.snapshot([ModelCard(name="m", model_type=3, context_length=7)])).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["dynamo_frontend_time_to_first_token_seconds"].type == "histogram"
    assert families["dynamo_frontend_requests"].type == "counter"
    assert families["dynamo_frontend_model_context_length"].samples[0].value == 7


def test_a_counter_keeps_a_name_without_a_suffix() -> None:
    plain = MetricFamily("a_applied", "A", "counter", [Sample("a_applied", {"model": "m"}, 2)])
    usual = MetricFamily("b", "B", "counter", [Sample("b_total", {}, 1)])
    lines = exposition([plain, usual]).decode().splitlines()
    assert lines[:3] == ["# HELP a_applied A", "# TYPE a_applied counter", 'a_applied{model="m"} 2.0']
    assert lines[3:] == ["# HELP b_total B", "# TYPE b_total counter", "b_total 1.0"]


def test_processes_are_told_apart() -> None:
    one = [MetricFamily("a", "A", "counter", [Sample("a_total", {"model": "m"}, 1)])]
    other = [
        MetricFamily("a", "A", "counter", [Sample("a_total", {"model": "m"}, 2)]),
        MetricFamily("b", "B", "gauge", []),
    ]
    merged = merge({"0": one, "1": other})
    assert [family.name for family in merged] == ["a", "b"]
    assert [(sample.labels["http_worker"], sample.value) for sample in merged[0].samples] == [("0", 1), ("1", 2)]


def test_a_prefix_is_made_to_fit() -> None:
    assert clean_prefix("nv llm-http") == "nv_llm_http"
    assert clean_prefix("1st") == "_1st"
    with pytest.raises(ValueError, match="--metrics-prefix"):
        clean_prefix("--")
