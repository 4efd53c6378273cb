from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.engines.mocker import MockVocabulary, ReasoningArgs
from dynamo.engines.mocker.tokens import MockAnswer, _last, answer_for, total
from dynamo.protocols.engine import PreprocessedRequest, SamplingOptions, StopConditions
from dynamo.protocols.errors import InvalidArgument

PROMPT = [5, 6, 7]


@given(st.lists(st.integers(0, 2**32 - 1) | st.integers(0, 300), max_size=20), st.integers(1, 60))
def test_a_packed_prompt_has_the_sum_of_its_tokens(some: list[int], times: int) -> None:
    prompt = some * times
    assert total(array("I", prompt)) == total(prompt) == sum(prompt)


def answer(
    prompt: list[int] = PROMPT,
    *,
    seed: int | None = None,
    eos: tuple[int, ...] = (2,),
    vocabulary: MockVocabulary | None = None,
    limit: int = 5000,
    reasoning: ReasoningArgs | None = None,
    **stop: Any,
) -> MockAnswer:
    request = PreprocessedRequest(
        token_ids=prompt,
        stop_conditions=StopConditions(**stop),
        sampling_options=SamplingOptions(seed=seed),
        eos_token_ids=list(eos),
    )
    return answer_for(request, vocabulary or MockVocabulary(), limit, reasoning)


def all_of(source: MockAnswer) -> list[int]:
    tokens: list[int] = []
    while source.left(64):
        tokens += source.take(source.left(64))
    return tokens


def test_max_tokens_is_met_exactly() -> None:
    source = answer(max_tokens=100)
    assert len(all_of(source)) == 100
    assert source.finish_reason == "length"


def test_the_same_request_gets_the_same_answer_and_another_seed_another() -> None:
    assert all_of(answer(max_tokens=20)) == all_of(answer(max_tokens=20))
    assert all_of(answer(max_tokens=20, seed=1)) == all_of(answer(max_tokens=20, seed=1))
    assert len({tuple(all_of(answer(max_tokens=20, seed=seed))) for seed in (None, 1, 2, -1)}) == 4
    assert all_of(answer([5, 6, 8], max_tokens=20)) != all_of(answer(max_tokens=20))


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1), st.integers(1, 99), st.integers(), st.booleans())
def test_an_answer_continued_elsewhere_goes_on_as_it_would_have(
    prompt: list[int], cut: int, seed: int, ends: bool
) -> None:
    limit = 5000 - len(prompt) if ends else 100
    whole = all_of(answer(prompt, max_tokens=limit, seed=seed))
    said = whole[:cut]
    if cut >= len(whole):
        return
    rest = all_of(answer(prompt + said, max_tokens=limit - cut, seed=seed))
    assert said + rest == whole


@given(st.lists(st.integers(1, 30), min_size=1), st.booleans())
def test_how_many_are_taken_at_a_time_does_not_matter(cuts: list[int], ends: bool) -> None:
    source = answer(max_tokens=None if ends else 200, seed=3)
    tokens: list[int] = []
    for cut in cuts:
        tokens += source.take(source.left(cut))
    assert tokens == all_of(answer(max_tokens=None if ends else 200, seed=3))[: len(tokens)]


def test_without_max_tokens_the_answer_ends_by_itself() -> None:
    lengths = []
    for seed in range(50):
        source = answer(seed=seed)
        tokens = all_of(source)
        assert source.finish_reason == "eos"
        assert tokens[-1] == 2
        assert 2 not in tokens[:-1]
        lengths.append(len(tokens))
    assert len(set(lengths)) > 20
    assert 60 < sum(lengths) / len(lengths) < 250


def test_a_limit_that_is_the_rest_of_the_context_is_none() -> None:
    for asked in (4997, 9000):
        source = answer(max_tokens=asked)
        assert all_of(source) == all_of(answer())
        assert source.finish_reason == "eos"


def test_the_first_tokens_of_an_answer_can_be_asked_for() -> None:
    request = PreprocessedRequest(token_ids=PROMPT, stop_conditions=StopConditions(max_tokens=50, min_tokens=9))
    source = answer_for(request, MockVocabulary(), 5000, first=1)
    assert all_of(source) == all_of(answer(max_tokens=50))[:1]
    assert source.finish_reason == "length"


def test_choices_without_a_seed_differ() -> None:
    def choice(index: int, seed: int | None) -> tuple[int, ...]:
        request = PreprocessedRequest(
            token_ids=PROMPT,
            stop_conditions=StopConditions(max_tokens=20),
            sampling_options=SamplingOptions(seed=seed),
            choice=index,
        )
        return tuple(all_of(answer_for(request, MockVocabulary(), 5000)))

    assert len({choice(index, None) for index in range(3)}) == 3
    assert choice(0, None) == tuple(all_of(answer(max_tokens=20)))
    assert choice(1, 8) == tuple(all_of(answer(max_tokens=20, seed=8)))


def test_min_tokens_postpones_the_end() -> None:
    assert all(len(all_of(answer(seed=seed, min_tokens=300))) > 300 for seed in range(20))


@pytest.mark.parametrize("how", [{"ignore_eos": True}, {"eos": ()}])
def test_an_answer_that_nothing_ends_runs_to_the_context_limit(how: dict[str, Any]) -> None:
    source = answer(limit=500, **how)
    assert len(all_of(source)) == 497
    assert source.finish_reason == "length"


def test_a_stop_token_ends_the_answer_and_is_named() -> None:
    plain = all_of(answer(max_tokens=50))
    source = answer(max_tokens=50, stop_token_ids=[plain[10]])
    assert all_of(source) == plain[: plain.index(plain[10]) + 1]
    assert (source.finish_reason, source.stop_reason) == ("stop", plain[10])


def test_a_stop_token_is_not_made_before_min_tokens() -> None:
    plain = all_of(answer(max_tokens=50))
    tokens = all_of(answer(max_tokens=50, min_tokens=40, stop_token_ids=plain[:20]))
    assert not set(tokens[:40]) & set(plain[:20])
    assert len(tokens) > 40


def test_words_stay_in_the_vocabulary_and_off_special_ids() -> None:
    vocabulary = MockVocabulary(10, 20, avoid=[11, 12])
    words = set(all_of(answer(max_tokens=500, vocabulary=vocabulary, eos=(13,))))
    assert words == {10, 14, 15, 16, 17, 18, 19}


def test_a_large_vocabulary_is_sampled_from_end_to_end() -> None:
    words = MockVocabulary(0, 200_000).words
    assert len(words) <= 8192
    assert words[-1] > 199_000


@pytest.mark.parametrize(("low", "high", "avoid"), [(5, 5, []), (-1, 5, []), (0, 2**32 + 1, []), (1, 3, [1, 2])])
def test_a_vocabulary_without_words_is_refused(low: int, high: int, avoid: list[int]) -> None:
    with pytest.raises(InvalidArgument, match="vocabulary range"):
        MockVocabulary(low, high, avoid)


@pytest.mark.parametrize(
    ("stop", "message"),
    [
        ({"max_tokens": 0}, "max_tokens must be at least 1, not 0"),
        ({"max_tokens": -3}, "max_tokens must be at least 1"),
        ({"min_tokens": -1}, "min_tokens must be at least 0"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens 5 is more than max_tokens 4"),
    ],
)
def test_contradictory_stop_conditions_are_refused(stop: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        answer(**stop)


START, END = 1, 3
HALF = ReasoningArgs(start_thinking_token_id=START, end_thinking_token_id=END, thinking_ratio=0.5)


@pytest.mark.parametrize(("length", "end"), [(10, 4), (4, 1), (1, None)])
def test_thinking_stands_between_its_two_tokens(length: int, end: int | None) -> None:
    source = answer(max_tokens=length, reasoning=HALF)
    tokens = [token for _ in range(length) for token in source.take(1)]
    assert tokens == all_of(answer(max_tokens=length, reasoning=HALF))
    assert tokens[0] == START
    assert [index for index, token in enumerate(tokens) if token == END] == ([] if end is None else [end])


def test_an_answer_that_ends_by_itself_thinks_first() -> None:
    for seed in range(50):
        source = answer(seed=seed, reasoning=HALF)
        tokens = all_of(source)
        assert (tokens[0], tokens[63], tokens[-1]) == (START, END, 2)
        assert source.finish_reason == "eos"


def test_an_answer_with_stop_tokens_thinks_and_may_stop_with_the_thinking() -> None:
    assert all_of(answer(max_tokens=10, reasoning=HALF, stop_token_ids=[7]))[4] == END
    source = answer(max_tokens=10, reasoning=HALF, stop_token_ids=[START, END])
    assert len(all_of(source)) == 5
    assert (source.finish_reason, source.stop_reason) == ("stop", END)
    assert len(all_of(answer(max_tokens=10, min_tokens=5, reasoning=HALF, stop_token_ids=[END]))) == 10


@given(
    st.lists(st.integers(0, 2**32 - 1) | st.sampled_from([START, END, 2]), min_size=1),
    st.integers(1, 99),
    st.integers(),
    st.booleans(),
    st.floats(0, 1),
)
def test_thinking_continued_elsewhere_goes_on_as_it_would_have(
    earlier: list[int], cut: int, seed: int, ends: bool, ratio: float
) -> None:
    reasoning = ReasoningArgs(start_thinking_token_id=START, end_thinking_token_id=END, thinking_ratio=ratio)
    prompt = [*earlier, 2]
    limit = 5000 - len(prompt) if ends else 100
    whole = all_of(answer(prompt, max_tokens=limit, seed=seed, reasoning=reasoning))
    if cut >= len(whole):
        return
    rest = all_of(answer(prompt + whole[:cut], max_tokens=limit - cut, seed=seed, reasoning=reasoning))
    assert whole[:cut] + rest == whole


def test_a_prompt_that_begins_to_think_gets_the_rest_of_the_thoughts() -> None:
    tokens = all_of(answer([5, START], max_tokens=9, reasoning=HALF))
    assert (tokens.count(START), tokens.index(END)) == (0, 3)


def test_an_earlier_turn_that_thought_changes_nothing() -> None:
    assert all_of(answer([START, 5, END, 6, 2, 7], max_tokens=10, reasoning=HALF))[0] == START
    assert START not in all_of(answer([START, 5, END, 6], max_tokens=10, reasoning=HALF))


def test_thinking_tokens_are_no_words() -> None:
    vocabulary = MockVocabulary(0, 6, avoid=[2])
    tokens = all_of(answer(max_tokens=500, vocabulary=vocabulary, reasoning=HALF))
    assert (tokens.count(START), tokens.count(END)) == (1, 1)


@given(st.lists(st.integers(0, 2**32 - 1) | st.sampled_from([0, 1, 256, 2**16, 2**24])), st.integers(0, 300))
def test_a_token_is_found_where_it_stands_last(tokens: list[int], wanted: int) -> None:
    places = [index for index, token in enumerate(tokens) if token == wanted]
    assert _last(array("I", tokens).tobytes(), wanted) == (places[-1] if places else -1)
