"""Engine requests as TensorRT-LLM's sampling parameters."""

from __future__ import annotations

from typing import Any

import pytest

from dynamo.engines.trtllm.options import sampling_params
from dynamo.protocols.engine import OutputOptions, PreprocessedRequest, SamplingOptions, StopConditions
from dynamo.protocols.errors import InvalidArgument


def params(*, context: int | None = 100, guided: bool = True, **fields: Any) -> Any:
    return sampling_params(PreprocessedRequest(token_ids=[1, 2], **fields), context=context, guided=guided)


def test_without_options_it_samples_to_the_end_of_the_context() -> None:
    made = params()
    assert (made.temperature, made.top_k, made.top_p, made.seed) == (1.0, None, None, None)
    assert (made.max_tokens, made.end_id, made.stop_token_ids, made.detokenize) == (98, -1, None, False)


def test_a_temperature_of_zero_is_greedy() -> None:
    made = params(sampling_options=SamplingOptions(temperature=0.0, top_k=50))
    assert (made.temperature, made.top_k) == (None, 1)


def test_sampling_options_are_passed_on() -> None:
    made = params(
        sampling_options=SamplingOptions(
            temperature=0.5, top_p=0.9, top_k=-1, min_p=0.1, presence_penalty=0.2, frequency_penalty=0.3,
            repetition_penalty=1.1, seed=5,
        ),
        choice=2,
    )  # fmt: skip
    assert (made.temperature, made.top_p, made.top_k, made.min_p, made.seed) == (0.5, 0.9, 0, 0.1, 7)
    assert (made.presence_penalty, made.frequency_penalty, made.repetition_penalty) == (0.2, 0.3, 1.1)


def test_all_ids_that_end_an_answer_do() -> None:
    stops = StopConditions(stop_token_ids=[7], stop_token_ids_hidden=[8], max_tokens=9, min_tokens=2)
    made = params(stop_conditions=stops, eos_token_ids=[8, 9])
    assert (made.end_id, made.stop_token_ids, made.max_tokens, made.min_tokens) == (8, [9, 7], 9, 2)


def test_ignore_eos_leaves_the_stop_ids_of_the_client() -> None:
    made = params(stop_conditions=StopConditions(ignore_eos=True, stop_token_ids=[7]), eos_token_ids=[8])
    assert (made.ignore_eos, made.end_id, made.stop_token_ids) == (True, -1, [7])


@pytest.mark.parametrize(("asked", "sent"), [(None, None), (0, 1), (3, 3)])
def test_log_probabilities_of_the_sampled_token_need_at_least_one(asked: int | None, sent: int | None) -> None:
    assert params(output_options=OutputOptions(logprobs=asked)).logprobs == sent


@pytest.mark.parametrize(
    ("guidance", "field"),
    [
        ({"json": {"type": "object"}}, "json"),
        ({"regex": "a+"}, "regex"),
        ({"choice": ["a", "b"]}, "regex"),
        ({"grammar": 'root ::= "a"'}, "grammar"),
        ({"structural_tag": {"type": "structural_tag"}}, "structural_tag"),
    ],
)
def test_guidance_becomes_the_constraint_of_its_kind(guidance: dict[str, Any], field: str) -> None:
    made = params(sampling_options=SamplingOptions(guided_decoding=guidance)).guided_decoding
    given = {name for name in ("json", "regex", "grammar", "structural_tag") if getattr(made, name) is not None}
    assert given == {field}


@pytest.mark.parametrize(
    "fields",
    [
        {"sampling_options": SamplingOptions(seed=-1)},
        {"sampling_options": SamplingOptions(use_beam_search=True)},
        {"sampling_options": SamplingOptions(best_of=2)},
        {"sampling_options": SamplingOptions(logit_bias={"5": 1.0})},
        {"output_options": OutputOptions(prompt_logprobs=1)},
        {"context": None},
        {"context": 2},
        {"sampling_options": SamplingOptions(guided_decoding={"regex": "a"}), "guided": False},
    ],
)
def test_what_this_worker_cannot_do_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        params(**fields)
