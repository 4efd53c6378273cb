"""The names that programs written for ai-dynamo import."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from dynamo.compat.missing_names import ABSENT
from dynamo.health_check import HealthCheckPayload, load_health_check_from_env
from dynamo.llm import KvRouterConfig, ModelRuntimeConfig, compute_block_hash_for_seq, lora_name_to_id
from dynamo.protocols.card import ModelCard
from dynamo.runtime import records

RUNTIME = "Annotated Client Component Context DistributedRuntime Endpoint dynamo_endpoint dynamo_worker"
LLM = """
    EngineType EntrypointArgs HttpAsyncEngine HttpError HttpService KvEventPublisher KvRouter KvRouterConfig
    MockEngineArgs ModelInput ModelRuntimeConfig ModelType OverlapScores PythonAsyncEngine RadixTree RouterConfig
    RouterMode WorkerMetricsPublisher WorkerType compute_block_hash_for_seq fetch_llm fetch_model lora_name_to_id
    make_engine register_llm register_model run_input unregister_llm unregister_model
"""
CORE = "get_reasoning_parser_names get_tool_parser_names Instance InvalidArgument EngineShutdown __version__"


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("dynamo.runtime", RUNTIME),
        ("dynamo.llm", LLM),
        ("dynamo._core", f"{RUNTIME.replace('dynamo_endpoint dynamo_worker', '')} {LLM} {CORE}"),
        ("dynamo.runtime.logging", "configure_dynamo_logging"),
        ("dynamo.health_check", "HEALTH_CHECK_KEY HealthCheckPayload load_health_check_from_env"),
        ("dynamo.prometheus_names", "kvstats labels model_info name_prefix"),
        ("dynamo.logits_processing", "BaseLogitsProcessor"),
    ],
)
def test_a_published_name_is_where_workers_look_for_it(module: str, names: str) -> None:
    found = importlib.import_module(module)
    for name in names.split():
        assert getattr(found, name) is not None


@pytest.mark.parametrize(
    "module", ["dynamo.runtime", "dynamo.llm", "dynamo._core", "dynamo.common", "dynamo.nixl_connect"]
)
def test_a_name_that_is_not_offered_raises_a_sentence(module: str) -> None:
    found = importlib.import_module(module)
    for name, why in ABSENT.items():
        with pytest.raises(ImportError, match=re.escape(f"'{name}' is not in this Dynamo's {module}: {why}")):
            getattr(found, name)
    assert not hasattr(found, "no_such_name")


def test_images_in_a_block_change_its_hash_and_no_other() -> None:
    tokens, images = list(range(8)), [None, {"mm_objects": [{"mm_hash": 5}, {"mm_hash": 6}]}]
    plain, with_images = compute_block_hash_for_seq(tokens, 4), compute_block_hash_for_seq(tokens, 4, images)
    assert with_images[0] == plain[0]
    assert with_images[1] != plain[1]
    turned = [None, {"mm_objects": [{"mm_hash": 6}, {"mm_hash": 5}]}]
    assert compute_block_hash_for_seq(tokens, 4, turned) == with_images


def test_adapter_names_become_positive_numbers() -> None:
    numbers = [lora_name_to_id(f"adapter-{n}") for n in range(100)]
    assert len(set(numbers)) == 100
    assert all(1 <= number < 1 << 31 for number in numbers)


def test_a_router_config_takes_the_other_names_and_says_what_has_no_effect() -> None:
    config = KvRouterConfig(overlap_score_credit=0.5, host_cache_hit_weight=0.1)
    assert (config.router_config().overlap_weight, config.router_config().host_weight) == (0.5, 0.1)
    assert config.with_overrides(decode_active_request_weight=64.0).without_effect() == ["decode_active_request_weight"]
    assert KvRouterConfig.from_json('{"router_temperature": 0.5}').router_temperature == 0.5
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="decode_active_request_weight"):
            KvRouterConfig(decode_active_request_weight=wrong)


def test_what_a_worker_says_of_its_place_travels_in_its_card() -> None:
    config = ModelRuntimeConfig()
    config.taints, config.topology_domains = {"slow"}, {"zone": "a"}
    config.set_engine_specific("key", 1)
    with pytest.raises(ValueError, match="kv_transfer_enforcement"):
        config.kv_transfer_enforcement = "fallback"  # type: ignore[assignment]
    wrong: Any = {"rack": "r", 1: "b"}
    with pytest.raises(TypeError, match="topology_domains"):
        config.topology_domains = wrong
    assert config.topology_domains == {"zone": "a"}
    sent = records.encode(ModelCard(name="m", model_type=1, runtime_config=config))
    assert records.decode_card(sent).runtime_config == config


def test_a_health_check_comes_from_the_environment_if_it_is_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Mine(HealthCheckPayload):
        def __init__(self) -> None:
            self.default_payload = {"say": "hello"}
            super().__init__()

    assert Mine().to_dict() == {"say": "hello"}
    (tmp_path / "check.json").write_text(json.dumps({"say": "from a file"}))
    monkeypatch.setenv("DYN_HEALTH_CHECK_PAYLOAD", f"@{tmp_path}/check.json")
    assert Mine().to_dict() == {"say": "from a file"}
    for wrong in ("[1]", "no JSON", "@/no/such/file"):
        monkeypatch.setenv("DYN_HEALTH_CHECK_PAYLOAD", wrong)
        assert load_health_check_from_env() is None
