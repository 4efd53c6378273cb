"""What one request gets: tokens, ends, limits, probabilities, seeds."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dynamo.engines.llamacpp.engine import LlamaCppEngine
from dynamo.protocols.engine import PreprocessedRequest
from dynamo.protocols.errors import ContextLengthExceeded, EngineShutdown, InvalidArgument
from engines.llamacpp.conftest import Starting
from support.asking import answer, asking, chat, text, tiny_end, tiny_tokenizer
from support.sinks import Kept

FRANCE = "What is the capital of France?"


async def test_it_answers_a_question_and_ends_at_the_end_token(engine: LlamaCppEngine) -> None:
    sink = await answer(engine, asking(FRANCE))
    assert tiny_tokenizer().decode(sink.ids) == "The capital of France is Paris."
    assert sink.ids[-1] == tiny_end()
    assert sink.last.finish_reason == "eos"
    usage = sink.last.completion_usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(chat(FRANCE)), len(sink.ids))


async def test_bare_tokens_arrive_as_tokens_and_only_the_last_as_an_item(engine: LlamaCppEngine) -> None:
    sink = await answer(engine, asking(FRANCE))
    assert len(sink.items) == 1


@pytest.mark.parametrize("limit", [1, 2, 5])
async def test_an_answer_is_no_longer_than_its_limit(engine: LlamaCppEngine, limit: int) -> None:
    sink = await answer(engine, asking(FRANCE, max_tokens=limit))
    assert len(sink.ids) == limit
    assert sink.last.finish_reason == "length"


async def test_ignore_eos_goes_on_to_the_limit(engine: LlamaCppEngine) -> None:
    sink = await answer(engine, asking(FRANCE, ignore_eos=True, max_tokens=30))
    assert (len(sink.ids), sink.last.finish_reason) == (30, "length")


async def test_min_tokens_keeps_the_end_away(engine: LlamaCppEngine) -> None:
    sink = await answer(engine, asking(FRANCE, min_tokens=12, max_tokens=40))
    assert len(sink.ids) >= 12
    assert tiny_end() not in sink.ids[:11]


async def test_a_stop_id_ends_the_answer_and_is_named(engine: LlamaCppEngine) -> None:
    whole = (await answer(engine, asking(FRANCE))).ids
    sink = await answer(engine, asking(FRANCE, stop_token_ids=[whole[3]]))
    assert sink.ids == whole[:4]
    assert (sink.last.finish_reason, sink.last.stop_reason) == ("stop", whole[3])


async def test_an_answer_ends_where_the_context_does(starting: Starting) -> None:
    engine = await starting(context_length=32)
    sink = await answer(engine, asking(FRANCE, ignore_eos=True, max_tokens=None))
    assert len(chat(FRANCE)) + len(sink.ids) == 32
    assert sink.last.finish_reason == "length"


async def test_the_longest_prompt_that_leaves_room_is_answered(starting: Starting) -> None:
    engine = await starting(context_length=128, n_ctx=128, n_batch=32, max_num_seqs=16, cached_seqs=16)
    assert (await answer(engine, asking([5] * 127))).error is None
    assert isinstance((await answer(engine, asking([5] * 128))).error, ContextLengthExceeded)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (asking([]), "the prompt is empty"),
        (asking([1 << 20]), "token ids must be integers"),
        (asking([-1]), "token ids must be integers"),
        (asking("x", max_tokens=0), "max_tokens must be at least 1"),
        (asking("x", repetition_penalty=0.0), "repetition_penalty must be above 0"),
        (asking("x", logit_bias={"999999": 1.0}), "logit_bias"),
        (asking("x", logit_bias={"a": 1.0}), "logit_bias"),
        (asking("x", lora_name="a"), "does not support a LoRA adapter"),
        (asking("x", best_of=2), "does not support best_of"),
    ],
)
async def test_a_request_that_cannot_be_followed_is_refused_at_once(
    engine: LlamaCppEngine, request_: PreprocessedRequest, reason: str
) -> None:
    sink = Kept()
    engine.generate(request_, sink)
    assert isinstance(sink.error, InvalidArgument)
    assert reason in sink.error.message
    assert engine.quiet()


async def test_log_probabilities_of_all_tokens_sum_to_one(engine: LlamaCppEngine) -> None:
    sink = await answer(engine, asking(FRANCE, logprobs=100_000))
    assert len(sink.items) == len(sink.ids)
    for output in sink.items:
        (top,) = output.top_logprobs
        assert math.isclose(sum(math.exp(each.logprob) for each in top), 1, rel_tol=1e-4)
        assert (top[0].token_id, top[0].rank) == (output.token_ids[0], 1)
        assert output.log_probs == [top[0].logprob]
        assert [each.logprob for each in top] == sorted((each.logprob for each in top), reverse=True)


async def test_log_probabilities_are_those_before_sampling_changes_them(engine: LlamaCppEngine) -> None:
    plain = (await answer(engine, asking(FRANCE, logprobs=1))).items[0]
    banned = (await answer(engine, asking(FRANCE, logprobs=1, logit_bias={str(plain.token_ids[0]): -100.0}))).items[0]
    assert banned.token_ids != plain.token_ids
    assert banned.top_logprobs[0][0].token_id == plain.token_ids[0]
    assert banned.log_probs[0] < plain.log_probs[0]


WILD: dict[str, Any] = {"temperature": 3.0, "max_tokens": 24, "ignore_eos": True}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"top_p": 0.9},
        {"top_k": 20},
        {"min_p": 0.01},
        {"presence_penalty": 1.0, "frequency_penalty": 0.5},
        {"repetition_penalty": 1.3},
    ],
    ids=str,
)
async def test_a_seed_gives_the_same_answer_again(engine: LlamaCppEngine, options: dict[str, Any]) -> None:
    first, again, other = [
        (await answer(engine, asking(FRANCE, seed=seed, **WILD, **options))).ids for seed in (7, 7, 8)
    ]
    assert first == again
    assert first != other


async def test_the_choices_of_one_seeded_request_differ(engine: LlamaCppEngine) -> None:
    requests = [asking(FRANCE, seed=7, **WILD) for _ in range(2)]
    requests[1].choice = 1
    first, second = [(await answer(engine, request)).ids for request in requests]
    assert first != second


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}], ids=str)
async def test_narrow_sampling_is_greedy(engine: LlamaCppEngine, options: dict[str, Any]) -> None:
    assert await text(engine, asking(FRANCE, temperature=1.0, **options)) == "The capital of France is Paris."


async def test_a_strong_frequency_penalty_forbids_repetition(engine: LlamaCppEngine) -> None:
    sink = await answer(engine, asking(FRANCE, frequency_penalty=100.0, ignore_eos=True, max_tokens=60))
    assert len(set(sink.ids)) == len(sink.ids)


async def test_a_repetition_penalty_also_counts_the_prompt(engine: LlamaCppEngine) -> None:
    prompt = chat(FRANCE)
    sink = await answer(engine, asking(prompt, repetition_penalty=1000.0, ignore_eos=True, max_tokens=8))
    assert not set(sink.ids) & set(prompt)


async def test_nothing_is_answered_after_the_end(engine: LlamaCppEngine) -> None:
    sink = Kept()
    engine.generate(asking(FRANCE, ignore_eos=True, max_tokens=1000), sink)
    await engine.close()
    assert isinstance(sink.error, EngineShutdown)
    late = await answer(engine, asking(FRANCE))
    assert isinstance(late.error, EngineShutdown)
    await engine.close()


async def test_stop_token_ids_that_the_model_does_not_have_harm_no_request(engine: LlamaCppEngine) -> None:
    sink = await answer(engine, asking("Say hello", stop_token_ids=[-5, 10**7], min_tokens=3, max_tokens=4))
    assert sink.error is None
    assert len(sink.ids) == 4


@pytest.mark.parametrize("n_batch", [512, 34])
async def test_the_log_probabilities_of_a_prompt_are_those_of_the_same_tokens_as_an_answer(
    starting: Starting, n_batch: int
) -> None:
    engine = await starting(n_batch=n_batch, max_num_seqs=16, cached_seqs=16, cache_type="f32")
    prompt = chat(FRANCE)
    said = await answer(engine, asking(FRANCE, logprobs=2, ignore_eos=True, max_tokens=60))
    beside = Kept()
    engine.generate(asking("Say hello", ignore_eos=True, max_tokens=40), beside)
    whole = await answer(engine, asking([*prompt, *said.ids], prompt_logprobs=2, max_tokens=3))
    await beside.done
    scored = whole.items[0].prompt_logprobs
    assert scored[0] is None
    assert len(scored) == len(prompt) + 60
    for id, top, output in zip(said.ids, scored[len(prompt) :], said.items, strict=True):
        own = next(each for each in top if each.token_id == id)
        assert math.isclose(own.logprob, output.log_probs[0], abs_tol=1e-3)
        assert [each.token_id for each in top] == [each.token_id for each in output.top_logprobs[0]]
    assert all(item.prompt_logprobs is None for item in whole.items[1:])


async def test_a_prompt_of_one_token_has_no_log_probability(engine: LlamaCppEngine) -> None:
    sink = await answer(engine, asking([7], prompt_logprobs=0, max_tokens=2))
    assert sink.items[0].prompt_logprobs == [None]
    assert len(sink.ids) == 2
