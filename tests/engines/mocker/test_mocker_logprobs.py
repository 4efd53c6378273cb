from __future__ import annotations

from math import exp
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dynamo.engines.mocker import MockerArgs, MockerEngine
from dynamo.engines.mocker.logprobs import RANKS, TokenDistribution
from dynamo.protocols.engine import EngineOutput, OutputOptions, PreprocessedRequest, SamplingOptions, StopConditions
from support.sinks import Kept


async def outputs(prompt: list[int], options: OutputOptions, **fields: Any) -> list[EngineOutput]:
    engine = MockerEngine(MockerArgs(speedup_ratio=1e6, block_size=4))
    await engine.start()
    sink = Kept()
    stop = StopConditions(max_tokens=12, ignore_eos=True)
    request = PreprocessedRequest(token_ids=prompt, stop_conditions=stop, output_options=options, **fields)
    engine.generate(request, sink)
    await sink.done
    assert sink.error is None
    return sink.items


async def test_generated_tokens_come_with_their_log_probabilities() -> None:
    items = await outputs([1, 2, 3], OutputOptions(logprobs=4))
    assert sum(len(item.token_ids) for item in items) == 12
    for item in items:
        assert item.log_probs is not None
        assert item.top_logprobs is not None
        assert len(item.log_probs) == len(item.top_logprobs) == len(item.token_ids)
        for token, logprob, top in zip(item.token_ids, item.log_probs, item.top_logprobs, strict=True):
            assert {each.token_id: each.logprob for each in top}[token] == logprob
            assert len(top) == 4
            assert [each.rank for each in top] == [1, 2, 3, 4]
            assert sum(exp(each.logprob) for each in top) <= 1


async def test_the_same_request_gets_the_same_log_probabilities() -> None:
    first, second = [await outputs([5, 6], OutputOptions(logprobs=2)) for _ in range(2)]
    assert [p for item in first for p in item.log_probs or ()] == [p for item in second for p in item.log_probs or ()]


async def test_an_answer_is_as_likely_in_a_prompt_as_when_it_was_generated() -> None:
    prompt = [7, 8, 9]
    for seed in (None, 1, 77):
        items = await outputs(prompt, OutputOptions(logprobs=1), sampling_options=SamplingOptions(seed=seed))
        answer = [id for item in items for id in item.token_ids]
        generated = [logprob for item in items for logprob in item.log_probs or ()]
        again = await outputs(prompt + answer, OutputOptions(prompt_logprobs=1))
        told = again[0].prompt_logprobs
        assert told is not None
        assert len(told) == len(prompt + answer)
        assert told[0] is None
        assert all(item.prompt_logprobs is None for item in again[1:])
        scored = [
            next(each.logprob for each in top or () if each.token_id == token)
            for token, top in zip(answer, told[len(prompt) :], strict=True)
        ]
        assert scored == generated


async def test_without_being_asked_there_are_none() -> None:
    items = await outputs([1, 2, 3], OutputOptions())
    assert all(item.log_probs is None and item.prompt_logprobs is None for item in items)


@given(
    context_sum=st.integers(0, 2**40),
    position=st.integers(0, 2**20),
    words=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50, unique=True),
    others=st.lists(st.integers(0, 2**32 - 1), max_size=50, unique=True),
)
def test_probabilities_are_those_of_one_distribution(
    context_sum: int, position: int, words: list[int], others: list[int]
) -> None:
    distribution = TokenDistribution(words, context_sum, position)
    ranked = [each.logprob for each in distribution.top(RANKS, words[0])]
    assert ranked == sorted(ranked, reverse=True)
    assert sum(exp(distribution.logprob(token)) for token in {*words, *others}) <= 1
    for token in others:
        top = distribution.top(3, token)
        assert {each.token_id: each.logprob for each in top}[token] == distribution.logprob(token)
