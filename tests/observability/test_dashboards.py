"""The dashboards and alerts: current, and about metrics that the product has."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from dynamo.engines.llamacpp.tier_metrics import TierMetrics
from dynamo.handoff.record import HandoffLedger
from dynamo.handoff.worker.metrics import HandoffMetrics, TakeMetrics
from dynamo.kv.prompt_cost import Pace
from dynamo.kv.tiers import MemoryTier, TierStore
from dynamo.planner.config import PlannerConfig
from dynamo.planner.metrics import PlannerMetrics
from dynamo.runtime.status.counts import EndpointCounts, component_metrics
from dynamo.worker.serve import CacheGauges
from support.toys import Live

FOLDER = Path(__file__).parents[2] / "deploy" / "observability"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("observability_generate", FOLDER / "generate.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_files_are_what_the_table_makes_them(generate: Any) -> None:
    made = generate.files()
    assert {path: path.read_text() for path in made} == made
    assert set((FOLDER / "grafana").iterdir()) == {path for path in made if path.suffix == ".json"}


async def test_every_metric_that_is_named_exists(generate: Any) -> None:
    engine = cast(Any, SimpleNamespace(held_blocks=lambda: 0))
    store = TierStore(8, Pace(), memory=MemoryTier(1 << 20))
    async with Live() as live:
        families: list[Any] = [
            *await live.server.families(),
            *component_metrics([EndpointCounts({})], 1.0),
            *HandoffMetrics(HandoffLedger(), engine).families({}),
            *TakeMetrics().families({}),
            *CacheGauges().families({}),
            *TierMetrics(store, 8).collect(),
        ]
    store.close()
    known = {family.name for family in families} | set(PlannerMetrics(PlannerConfig()).names)
    table = generate.table()
    queries = [alert["query"] for alert in table["alert"]]
    for dashboard in table["dashboard"]:
        for panel in dashboard["panel"]:
            queries += [query for _, query in generate.queries(panel)]
    named = {name for query in queries for name in generate.metric_names(generate.written(query))}
    assert len(named) > 60
    assert named - known == set()


def test_a_query_names_its_families(generate: Any) -> None:
    query = 'sum by (le, dynamo_component) (rate(dynamo_a_seconds_bucket{dynamo_endpoint="x"}[1m])) / dynamo_b_total'
    assert generate.metric_names(query) == {"dynamo_a_seconds", "dynamo_b"}
