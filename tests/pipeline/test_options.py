from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dynamo.pipeline.options import ModelDefaults, engine_request, template_arguments
from dynamo.protocols.chat import ChatRequest
from dynamo.protocols.completions import CompletionRequest
from dynamo.protocols.engine import OutputOptions, Routing, SamplingOptions, StopConditions
from dynamo.protocols.errors import InvalidRequest

MODEL = ModelDefaults(
    sampling=SamplingOptions(temperature=0.6, top_p=0.95, top_k=20, min_p=0.1, repetition_penalty=1.05),
    eos_token_ids=(2, 3),
    context_length=100,
)
BARE = ModelDefaults()


def chat(**fields: Any) -> ChatRequest:
    return msgspec.convert({"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}, ChatRequest)


def completion(**fields: Any) -> CompletionRequest:
    return msgspec.convert({"model": "m", "prompt": "p", **fields}, CompletionRequest)


def test_omitted_options_default_to_the_model_authors_recommendation() -> None:
    request = engine_request(chat(), [1] * 10, MODEL, mdc_sum="sum")
    assert request.sampling_options == SamplingOptions(
        temperature=0.6, top_p=0.95, top_k=20, min_p=0.1, repetition_penalty=1.05
    )
    assert request.stop_conditions == StopConditions(max_tokens=90, stop_token_ids_hidden=[2, 3])
    assert request.eos_token_ids == [2, 3]
    assert (request.mdc_sum, request.routing, request.annotations) == ("sum", None, [])


def test_the_clients_options_override_the_defaults() -> None:
    fields = {"temperature": 0, "top_p": 0.5, "top_k": 0, "min_p": 0, "repetition_penalty": 1}
    options = engine_request(chat(**fields, nvext={"top_k": 7}), [1], MODEL).sampling_options
    assert options == SamplingOptions(temperature=0, top_p=0.5, top_k=-1, min_p=0, repetition_penalty=1)


def test_nvext_overrides_the_defaults_but_not_the_root_fields() -> None:
    nvext = {"top_k": 7, "repetition_penalty": 1.5, "cache_salt": "n", "agent_hints": {"priority": 4}}
    request = engine_request(chat(nvext=nvext), [1], MODEL)
    assert (request.sampling_options.top_k, request.sampling_options.repetition_penalty) == (7, 1.5)
    assert request.routing == Routing(cache_salt="n", priority=4)
    request = engine_request(chat(nvext=nvext, cache_salt="r", priority=0), [1], MODEL)
    assert request.routing == Routing(cache_salt="r", priority=0)


def test_greedy_sampling_overrides_all_sampling_options() -> None:
    options = engine_request(chat(temperature=1.5, nvext={"greed_sampling": True}), [1], MODEL).sampling_options
    assert (options.temperature, options.top_p, options.top_k, options.min_p) == (0, None, None, None)


def test_stops_are_strings_and_token_ids() -> None:
    conditions = engine_request(chat(stop=["a", 5, "b"], stop_token_ids=[6, 5]), [1], MODEL).stop_conditions
    assert (conditions.stop, conditions.stop_token_ids) == (["a", "b"], [5, 6])
    assert engine_request(chat(stop="a"), [1], MODEL).stop_conditions.stop == ["a"]
    assert engine_request(chat(stop=[]), [1], MODEL).stop_conditions.stop is None


@pytest.mark.parametrize("fields", [{"ignore_eos": True}, {"nvext": {"ignore_eos": True}}])
def test_ignore_eos_ignores_the_end_tokens_and_no_other_stop(fields: dict[str, Any]) -> None:
    request = engine_request(chat(stop=["a", 4], max_tokens=5, min_tokens=1, **fields), [1], MODEL)
    stops = StopConditions(max_tokens=5, min_tokens=1, ignore_eos=True, stop=["a"], stop_token_ids=[4])
    assert request.stop_conditions == stops
    assert request.eos_token_ids == []


def test_ignore_eos_in_the_root_overrides_nvext() -> None:
    request = engine_request(chat(ignore_eos=False, nvext={"ignore_eos": True}), [1], MODEL)
    assert request.eos_token_ids == [2, 3]


def test_max_completion_tokens_overrides_max_tokens() -> None:
    assert engine_request(chat(max_tokens=5, max_completion_tokens=7), [1], MODEL).stop_conditions.max_tokens == 7


def test_without_a_known_context_the_engine_decides_on_the_length() -> None:
    assert engine_request(chat(), [1] * 1000, BARE).stop_conditions == StopConditions()


def test_a_prompt_that_fills_the_context_is_rejected_with_the_numbers() -> None:
    with pytest.raises(
        InvalidRequest, match=r"maximum context length is 100 tokens.* resulted in 100 tokens"
    ) as caught:
        engine_request(chat(), [1] * 100, MODEL)
    assert (caught.value.param, caught.value.code) == ("messages", "context_length_exceeded")
    assert engine_request(chat(), [1] * 99, MODEL).stop_conditions.max_tokens == 1


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_limit_beyond_the_context_means_all_that_is_left_of_it(name: str) -> None:
    assert engine_request(chat(**{name: 60}), [1] * 40, MODEL).stop_conditions.max_tokens == 60
    assert engine_request(chat(**{name: 61}), [1] * 40, MODEL).stop_conditions.max_tokens == 60


def test_min_tokens_beyond_the_context_is_rejected() -> None:
    with pytest.raises(InvalidRequest, match="only 60 of this model's context of 100"):
        engine_request(completion(min_tokens=61), [1] * 40, MODEL)


@pytest.mark.parametrize(
    ("request_", "options"),
    [
        (chat(), OutputOptions()),
        (chat(logprobs=False), OutputOptions()),
        (chat(logprobs=True), OutputOptions(logprobs=1)),
        (chat(logprobs=True, top_logprobs=5), OutputOptions(logprobs=5)),
        (chat(skip_special_tokens=False), OutputOptions(skip_special_tokens=False)),
        (chat(nvext={"annotations": ["formatted_prompt"]}), OutputOptions(formatted_prompt=True)),
        (completion(logprobs=0), OutputOptions(logprobs=1)),
        (completion(echo=True), OutputOptions()),
        (completion(echo=True, logprobs=3), OutputOptions(logprobs=3, prompt_logprobs=3)),
        (completion(prompt_logprobs=2), OutputOptions(prompt_logprobs=2)),
    ],
    ids=str,
)
def test_logprobs_requests_become_output_options(request_: Any, options: OutputOptions) -> None:
    assert engine_request(request_, [1], BARE).output_options == options


ON = {"thinking": True, "enable_thinking": True, "thinking_mode": "enabled"}
OFF = {"thinking": False, "enable_thinking": False, "thinking_mode": "disabled"}


@pytest.mark.parametrize(
    ("fields", "arguments"),
    [
        ({}, {}),
        ({"chat_template_args": {"a": 1}}, {"a": 1}),
        ({"thinking": True}, ON),
        ({"thinking": {"type": "disabled"}, "chat_template_kwargs": {"enable_thinking": True}}, OFF),
        ({"thinking": {"type": "adaptive"}, "chat_template_kwargs": {"thinking": True}}, {"thinking_mode": "adaptive"}),
        ({"chat_template_kwargs": {"enable_thinking": False}}, OFF),
        ({"chat_template_kwargs": {"thinking_mode": "enabled"}}, ON),
        ({"reasoning_effort": "none"}, OFF | {"reasoning_effort": "none"}),
        (
            {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}},
            ON | {"reasoning_effort": "low"},
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_thinking_sets_every_variable_that_templates_use(fields: dict[str, Any], arguments: dict[str, Any]) -> None:
    assert template_arguments(chat(**fields)) == arguments


def test_a_thinking_budget_reaches_the_engine() -> None:
    fields = {"thinking": {"type": "enabled", "budget_tokens": 9}}
    assert engine_request(chat(**fields), [1], BARE).stop_conditions.max_thinking_tokens == 9
    fields["nvext"] = {"max_thinking_tokens": 4}
    assert engine_request(chat(**fields), [1], BARE).stop_conditions.max_thinking_tokens == 4
