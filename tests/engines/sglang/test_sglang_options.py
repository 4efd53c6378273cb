"""Engine requests as the arguments of SGLang's `async_generate`."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from dynamo.engines.sglang.options import SamplingLimits, generate_arguments
from dynamo.engines.sglang.outputs import finish_reason, refusal
from dynamo.protocols.engine import OutputOptions, PreprocessedRequest, Routing, SamplingOptions, StopConditions
from dynamo.protocols.errors import HttpError, InvalidArgument, Unavailable

CALLS = {"json": {"type": "object"}, "begin": "<c>", "end": "</c>", "separator": "\n", "limit": 1}


def arguments(**fields: Any) -> dict[str, Any]:
    limits = fields.pop("limits", SamplingLimits())
    return generate_arguments(PreprocessedRequest(**{"token_ids": array("I", [1, 2]), **fields}), "r", limits)


def params(**fields: Any) -> dict[str, Any]:
    made: dict[str, Any] = arguments(**fields)["sampling_params"]
    return made


def test_what_the_client_leaves_out_is_left_to_sglang() -> None:
    assert arguments() == {"input_ids": [1, 2], "sampling_params": {"max_new_tokens": None}, "stream": True, "rid": "r"}


def test_sampling_options_are_passed_on() -> None:
    sampling = SamplingOptions(
        temperature=0.0, top_p=0.9, top_k=7, min_p=0.1, presence_penalty=0.2, frequency_penalty=0.3,
        repetition_penalty=1.1, logit_bias={"5": 2.0}, seed=5,
    )  # fmt: skip
    assert params(sampling_options=sampling, choice=2) == {
        "temperature": 0.0, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "presence_penalty": 0.2, "frequency_penalty": 0.3,
        "repetition_penalty": 1.1, "logit_bias": {"5": 2.0}, "sampling_seed": 7, "max_new_tokens": None,
    }  # fmt: skip


def test_a_top_k_of_zero_means_all_tokens() -> None:
    assert params(sampling_options=SamplingOptions(top_k=0))["top_k"] == -1


def test_all_ids_that_end_an_answer_are_stop_ids() -> None:
    stops = StopConditions(stop_token_ids=[7], stop_token_ids_hidden=[8], max_tokens=9, min_tokens=2)
    made = params(stop_conditions=stops, eos_token_ids=[8, 9])
    assert sorted(made["stop_token_ids"]) == [7, 8, 9]
    assert (made["max_new_tokens"], made["min_new_tokens"]) == (9, 2)


def test_ignore_eos_leaves_the_stop_ids_of_the_client() -> None:
    made = params(stop_conditions=StopConditions(ignore_eos=True, stop_token_ids=[7]), eos_token_ids=[8])
    assert made["ignore_eos"]
    assert made["stop_token_ids"] == [7]


def test_log_probabilities_are_asked_for_from_where_they_are_wanted() -> None:
    answer = arguments(output_options=OutputOptions(logprobs=2))
    both = arguments(output_options=OutputOptions(logprobs=0, prompt_logprobs=3))
    assert (answer["return_logprob"], answer["top_logprobs_num"], answer["logprob_start_len"]) == (True, 2, -1)
    assert (both["return_logprob"], both["top_logprobs_num"], both["logprob_start_len"]) == (True, 3, 0)


def test_routing_is_passed_on() -> None:
    made = arguments(routing=Routing(dp_rank=1, priority=3, cache_salt="tenant"), limits=SamplingLimits(ranks=2))
    assert (made["routed_dp_rank"], made["priority"], made["cache_salt"]) == (1, 3, "tenant")


@pytest.mark.parametrize(
    ("guidance", "field"),
    [
        ({"json": {"type": "object"}}, "json_schema"),
        ({"json": '{"type": "object"}'}, "json_schema"),
        ({"regex": "a+"}, "regex"),
        ({"choice": ["a.b", "c"]}, "regex"),
        ({"grammar": 'root ::= "a"'}, "ebnf"),
        ({"structural_tag": {"type": "structural_tag"}}, "structural_tag"),
        ({"json": {"type": "array"}, "tool_calls": CALLS}, "structural_tag"),
    ],
)
def test_guidance_becomes_the_constraint_of_its_kind(guidance: dict[str, Any], field: str) -> None:
    made = params(sampling_options=SamplingOptions(guided_decoding=guidance))
    assert set(made) == {"max_new_tokens", field}
    assert isinstance(made[field], str)


def test_choices_are_taken_literally() -> None:
    made = params(sampling_options=SamplingOptions(guided_decoding={"choice": ["a.b", "c"]}))
    assert made["regex"] == r"(a\.b|c)"


@pytest.mark.parametrize(
    "fields",
    [
        {"sampling_options": SamplingOptions(seed=1 << 63)},
        {"sampling_options": SamplingOptions(use_beam_search=True)},
        {"sampling_options": SamplingOptions(best_of=2)},
        {"sampling_options": SamplingOptions(guided_decoding={"tool_calls": {"json": 1}})},
        {"sampling_options": SamplingOptions(guided_decoding={"choice": []})},
        {"routing": Routing(lora_name="adapter")},
    ],
)
def test_what_this_worker_cannot_do_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        arguments(**fields)


def test_without_a_grammar_backend_guidance_is_refused_by_its_flag() -> None:
    request = PreprocessedRequest(token_ids=[1], sampling_options=SamplingOptions(guided_decoding={"regex": "a"}))
    with pytest.raises(InvalidArgument, match="--grammar-backend none"):
        generate_arguments(request, "r", SamplingLimits(guided=False))


@pytest.mark.parametrize(
    ("fields", "limits", "named"),
    [
        ({"sampling_options": SamplingOptions(min_p=0.1)}, SamplingLimits(seeded=True), "min_p"),
        ({"sampling_options": SamplingOptions(min_p=0.1, seed=1)}, SamplingLimits(seeded=True), "min_p"),
        ({"output_options": OutputOptions(logprobs=9)}, SamplingLimits(vocabulary=8), "logprobs"),
        ({"output_options": OutputOptions(prompt_logprobs=9)}, SamplingLimits(vocabulary=8), "logprobs"),
        ({"token_ids": array("I", [1, 8])}, SamplingLimits(vocabulary=8), "token id 8"),
        ({"token_ids": [-1]}, SamplingLimits(), "token ids"),
        ({"routing": Routing(cache_salt="tenant")}, SamplingLimits(salts=False), "cache_salt"),
    ],
)
def test_what_would_end_the_engine_is_refused_by_name(
    fields: dict[str, Any], limits: SamplingLimits, named: str
) -> None:
    with pytest.raises(InvalidArgument, match=named):
        arguments(limits=limits, **fields)


def test_without_a_seed_a_deterministic_engine_samples_each_request_in_another_way() -> None:
    limits = SamplingLimits(seeded=True)
    seeds = {arguments(limits=limits)["sampling_params"]["sampling_seed"] for _ in range(8)}
    assert len(seeds) == 8
    assert "sampling_seed" not in arguments()["sampling_params"]


def test_a_deterministic_engine_takes_seeds_with_what_it_can_sample() -> None:
    sampling = SamplingOptions(seed=5, top_p=0.5, top_k=3, min_p=0.0)
    made = arguments(sampling_options=sampling, limits=SamplingLimits(seeded=True))["sampling_params"]
    assert (made["sampling_seed"], made["top_p"], made["top_k"]) == (5, 0.5, 3)


def test_finish_reasons_are_told_apart() -> None:
    assert finish_reason({"type": "stop", "matched": 7}) == ("stop", 7)
    assert finish_reason({"type": "stop", "matched": [7, 8]}) == ("stop", None)
    assert finish_reason({"type": "length", "length": 3}) == ("length", None)
    assert finish_reason({"type": "abort", "message": "Aborted"}) == ("cancelled", None)
    assert finish_reason({"type": "new"}) == ("error: SGLang ended with new", None)


def test_an_abort_with_a_status_is_a_refusal() -> None:
    assert refusal({"type": "abort", "message": "Aborted", "status_code": None}) is None
    kinds = {status: refusal({"type": "abort", "message": "why", "status_code": status}) for status in (400, 503, 500)}
    assert [type(error) for error in kinds.values()] == [InvalidArgument, Unavailable, HttpError]
    assert {error.message for error in kinds.values() if error} == {"why"}
