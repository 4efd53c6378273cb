"""Is the stand-in still like TensorRT-LLM? Its wheel is not on PyPI: what was published is kept in `published.json`."""

from __future__ import annotations

import dataclasses
import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from tensorrt_llm import LLM, SamplingParams
from tensorrt_llm.llmapi import DisaggregatedParams
from tensorrt_llm.llmapi.llm_args import TorchLlmArgs

from dynamo.engines.trtllm.arguments import _SERVE_NAMES
from dynamo.engines.trtllm.handoff import _CARRIED

PUBLISHED = json.loads((Path(__file__).parent / "published.json").read_text())


def defaults(function: Any) -> dict[str, Any]:
    parameters = dict(inspect.signature(function).parameters)
    parameters.pop("self", None)
    return {name: each.default for name, each in parameters.items() if each.kind is not each.VAR_KEYWORD}


@pytest.mark.parametrize("name", ["generate_async", "get_kv_cache_events_async", "get_stats_async", "shutdown"])
def test_the_methods_have_the_published_parameters(name: str) -> None:
    found, published = defaults(getattr(LLM, name)), PUBLISHED[name]
    assert list(found) == list(published)
    assert isinstance(published, list) or found == published


def test_the_engine_has_the_published_parameters() -> None:
    assert list(defaults(LLM)) == PUBLISHED["LLM"]
    assert set(TorchLlmArgs.model_fields) <= {*PUBLISHED["LLM"], *PUBLISHED["LLM, by keyword"]}


def test_sampling_parameters_have_the_published_names_and_defaults() -> None:
    assert defaults(SamplingParams) == PUBLISHED["SamplingParams"]


def test_the_parameters_of_a_hand_off_have_no_dictionary_and_the_published_names() -> None:
    """With slots there is no `vars()` of them."""
    assert [field.name for field in dataclasses.fields(DisaggregatedParams)] == PUBLISHED["DisaggregatedParams"]
    assert not hasattr(DisaggregatedParams(), "__dict__")
    assert set(_CARRIED) <= set(PUBLISHED["DisaggregatedParams"])


def test_names_of_its_server_stand_for_published_arguments() -> None:
    outside = {name.partition(".")[0] for name in _SERVE_NAMES.values()}
    assert outside <= {*PUBLISHED["LLM"], *PUBLISHED["LLM, by keyword"]}
