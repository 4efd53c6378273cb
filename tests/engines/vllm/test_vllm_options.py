"""Engine requests as vLLM's sampling parameters."""

from __future__ import annotations

from typing import Any

import pytest
import xgrammar
from xgrammar.testing import _is_grammar_accept_string

from dynamo.engines.vllm.options import sampling_params, structured_outputs
from dynamo.protocols.engine import OutputOptions, PreprocessedRequest, SamplingOptions, StopConditions
from dynamo.protocols.errors import InvalidArgument

CALLS = {"json": {"type": "object"}, "begin": "<c>", "end": "</c>", "separator": "\n", "limit": 1}


def params(**fields: Any) -> Any:
    return sampling_params(PreprocessedRequest(token_ids=[1, 2], **fields))


def test_what_the_client_leaves_out_is_left_to_vllm() -> None:
    made = params()
    assert (made.temperature, made.top_p, made.top_k, made.seed, made.logprobs) == (1.0, 1.0, 0, None, None)
    assert (made.max_tokens, made.min_tokens, made.stop_token_ids) == (None, 0, [])


def test_sampling_options_are_passed_on() -> None:
    made = params(
        sampling_options=SamplingOptions(
            temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, presence_penalty=0.2, frequency_penalty=0.3,
            repetition_penalty=1.1, logit_bias={"5": 200.0, "6": -3.0},
        ),
        output_options=OutputOptions(logprobs=3, prompt_logprobs=0),
    )  # fmt: skip
    assert (made.temperature, made.top_p, made.top_k, made.min_p) == (0.5, 0.9, 7, 0.1)
    assert (made.presence_penalty, made.frequency_penalty, made.repetition_penalty) == (0.2, 0.3, 1.1)
    assert made.logit_bias == {5: 100.0, 6: -3.0}
    assert (made.logprobs, made.prompt_logprobs) == (3, 0)


def test_all_ids_that_end_an_answer_are_stop_ids() -> None:
    stops = StopConditions(stop_token_ids=[7], stop_token_ids_hidden=[8], max_tokens=9, min_tokens=2)
    made = params(stop_conditions=stops, eos_token_ids=[8, 9])
    assert sorted(made.stop_token_ids) == [7, 8, 9]
    assert (made.max_tokens, made.min_tokens) == (9, 2)


def test_ignore_eos_leaves_the_stop_ids_of_the_client() -> None:
    made = params(stop_conditions=StopConditions(ignore_eos=True, stop_token_ids=[7]), eos_token_ids=[8])
    assert made.ignore_eos
    assert made.stop_token_ids == [7]


def test_each_choice_has_a_seed_of_its_own() -> None:
    seeds = [params(sampling_options=SamplingOptions(seed=5), choice=choice).seed for choice in range(3)]
    assert seeds == [5, 6, 7]


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingOptions(seed=1 << 64),
        SamplingOptions(use_beam_search=True),
        SamplingOptions(best_of=2),
        SamplingOptions(logit_bias={"x": 1.0}),
        SamplingOptions(guided_decoding={"tool_calls": {"json": 1}}),
        SamplingOptions(guided_decoding={"choice": []}),
    ],
)
def test_what_vllm_cannot_do_is_refused(sampling: SamplingOptions) -> None:
    with pytest.raises(InvalidArgument):
        params(sampling_options=sampling)


@pytest.mark.parametrize(
    ("guidance", "field"),
    [
        ({"json": {"type": "object"}}, "json"),
        ({"json": '{"type": "object"}'}, "json"),
        ({"regex": "a+"}, "regex"),
        ({"choice": ["a", "b"]}, "regex"),
        ({"grammar": 'root ::= "a"'}, "grammar"),
        ({"structural_tag": {"type": "structural_tag"}}, "structural_tag"),
        ({"json": {"type": "array"}, "tool_calls": CALLS}, "structural_tag"),
    ],
)
def test_guidance_becomes_the_constraint_of_its_kind(guidance: dict[str, Any], field: str) -> None:
    made = structured_outputs(guidance)
    assert made is not None
    assert getattr(made, field)


@pytest.mark.parametrize(
    ("limit", "text", "fits"),
    [
        (1, "<c>{}</c>", True),
        (1, "<c>{}</c>\n<c>{}</c>", False),
        (2, "<c>{}</c>", True),
        (2, "<c>{}</c>\n<c>{}</c>", True),
        (2, "<c>{}</c>\n<c>{}</c>\n<c>{}</c>", False),
        (2, "", False),
        (1, "<c>{ }</c>", True),
        (1, "<c>{  }</c>", False),
    ],
)
def test_forced_calls_keep_the_form_the_model_writes(limit: int, text: str, fits: bool) -> None:
    made = structured_outputs({"tool_calls": CALLS | {"limit": limit}})
    assert made is not None
    grammar = xgrammar.Grammar.from_structural_tag(made.structural_tag)
    assert _is_grammar_accept_string(grammar, text) is fits


@pytest.mark.parametrize("text", ['"a\tb"', '"a\x01b"', '"abcdef"'])
def test_a_string_of_a_length_is_json_within_that_length(text: str) -> None:
    made = structured_outputs({"json": {"type": "string", "maxLength": 5}})
    assert made is not None
    grammar = xgrammar.Grammar.from_json_schema(made.json, any_whitespace=False)
    assert _is_grammar_accept_string(grammar, '"a b c"')
    assert not _is_grammar_accept_string(grammar, text)
