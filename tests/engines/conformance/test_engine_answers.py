"""What one request gets: equal in every engine that has the feature."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dynamo.engines.registry import make_engine
from dynamo.protocols.engine import PreprocessedRequest
from engines.conformance.conftest import Started, only, spec
from engines.conformance.features import FEATURES, ON_A_GPU, Has, those
from support.asking import answer, asking, chat, tiny_end, tiny_tokenizer

pytestmark = pytest.mark.asyncio(loop_scope="session")

FRANCE = "What is the capital of France?"
ANSWERS = {
    FRANCE: ("The capital of France is Paris.", -0.001),
    "What is the capital of Japan?": ("The capital of Japan is Tokyo.", 0.0),
    "Say hello": ("Hello! How can I help you?", -0.001),
    "What is two plus two?": ("Two in a Llama of 12,756 km.", -1.948),
    "Tell me a story": (
        "Once upon a time a tiny model lived in a big cluster. It answered every question it knew, and was happy.",
        0.0,
    ),
    "Count from one to ten.": (
        "Run `make run`. It builds .venv, starts the server on port 8080 and serves the bundled model tiny.",
        -1.63,
    ),
    "What color is the sky?": ("I don't know. I am only a tiny model.", 0.0),
}
"""The bundled model's greedy answers, and the sums of their log probabilities."""


@only(those("greedy"))
async def test_greedy_answers_are_those_of_every_other_engine(started: Started) -> None:
    kept = await started.ask(*(asking(question, max_tokens=60) for question in ANSWERS))
    assert [tiny_tokenizer().decode(each.ids) for each in kept] == [text for text, _ in ANSWERS.values()]


async def test_a_greedy_request_gets_the_same_answer_again(started: Started) -> None:
    first, again = [(await started.one(asking(FRANCE))).ids for _ in range(2)]
    assert first == again != []


@pytest.mark.parametrize("limit", [1, 2, 5])
async def test_an_answer_is_as_long_as_its_limit(started: Started, limit: int) -> None:
    kept = await started.one(asking(FRANCE, max_tokens=limit))
    assert (len(kept.ids), kept.last.finish_reason) == (limit, "length")
    usage = kept.last.completion_usage
    assert usage is not None
    prompt = len(chat(FRANCE))
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (prompt, limit, prompt + limit)


@only(those("eos"))
async def test_the_end_token_ends_an_answer(started: Started) -> None:
    kept = await started.one(asking(FRANCE))
    assert kept.ids.index(tiny_end()) == len(kept.ids) - 1
    assert kept.last.finish_reason in ("stop", "eos")
    assert kept.last.stop_reason is None


@only(those("ignore_eos"))
@pytest.mark.parametrize("options", [{"ignore_eos": True}, {"min_tokens": 30}], ids=str)
async def test_an_answer_goes_on_past_its_end_if_asked_to(started: Started, options: dict[str, Any]) -> None:
    kept = await started.one(asking(FRANCE, max_tokens=30, **options))
    assert (len(kept.ids), kept.last.finish_reason) == (30, "length")


@only([name for name in those("stop_ids") if name != "echo_core"])
async def test_a_stop_id_ends_the_answer_of_the_engine_itself(started: Started) -> None:
    whole = (await started.one(asking(FRANCE))).ids
    kept = await started.one(asking(FRANCE, stop_token_ids=[whole[3]]))
    assert kept.ids == whole[: whole.index(whole[3]) + 1]
    assert (kept.last.finish_reason, kept.last.stop_reason) == ("stop", whole[3])


@only(those("sampling"))
async def test_sampling_options_change_the_answer(started: Started) -> None:
    wild: dict[str, Any] = {"temperature": 2.0, "max_tokens": 24, "ignore_eos": True}
    greedy, *narrow = await started.ask(
        asking(FRANCE),
        *(asking(FRANCE, temperature=1.0, **each) for each in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0})),
    )
    assert [each.ids for each in narrow] == [greedy.ids] * 3
    drawn = await started.ask(*(asking([5, 6, 7], **wild) for _ in range(4)))
    assert len({tuple(each.ids) for each in drawn}) == 4
    penalties = ({"presence_penalty": 2.0}, {"frequency_penalty": 2.0}, {"repetition_penalty": 2.0})
    plain, *penalised = await started.ask(
        *(asking([5, 6, 7], max_tokens=60, ignore_eos=True, **each) for each in ({}, *penalties))
    )
    assert all(each.ids != plain.ids for each in penalised)
    biased = await started.one(asking(FRANCE, logit_bias={"300": 100.0}))
    assert set(biased.ids) == {300}


@only(those("seed", Has.YES, Has.LOGGED))
async def test_a_seed_repeats_an_answer_or_is_logged_as_without_effect(
    started: Started, caplog: pytest.LogCaptureFixture
) -> None:
    def seeded(seed: int) -> PreprocessedRequest:
        return asking([5, 6, 7], seed=seed, temperature=2.0, max_tokens=24, ignore_eos=True)

    if FEATURES["seed"].engines[started.name] is Has.YES:
        first, again, other = [(await started.one(seeded(seed))).ids for seed in (7, 7, 8)]
        assert first == again != other
        return
    if started.name in ON_A_GPU:  # SGLang ends all children of its process when an engine is closed
        with caplog.at_level("INFO"):
            assert (await started.one(seeded(7))).error is None
    else:
        engine = make_engine(started.name, spec(started.name))  # a new one: the log mentions it once
        await engine.start()
        with caplog.at_level("INFO"):
            assert (await answer(engine, seeded(7))).error is None
        await engine.close()
    assert "seeds are accepted and have no effect" in caplog.text


@only(those("logprobs"))
async def test_log_probabilities_belong_to_their_tokens(started: Started) -> None:
    kept = await started.one(asking(FRANCE, logprobs=3, max_tokens=6))
    shown = 0
    for item in kept.items:
        for id, logprob, top in zip(item.token_ids, item.log_probs or (), item.top_logprobs or (), strict=False):
            shown += 1
            assert logprob <= 0
            assert (id, logprob) in [(each.token_id, each.logprob) for each in top]
            assert len({each.token_id for each in top}) == len(top) in (3, 4)
            assert sum(math.exp(each.logprob) for each in top) <= 1 + 1e-4
    assert shown == len(kept.ids) == 6
    assert kept.ids == (await started.one(asking(FRANCE, max_tokens=6))).ids


@only([name for name in those("logprobs") if name in those("greedy")])
async def test_log_probabilities_sum_to_those_of_every_other_engine(started: Started) -> None:
    kept = await started.ask(*(asking(question, max_tokens=60, logprobs=0) for question in ANSWERS))
    sums = [sum(each for item in answer.items for each in item.log_probs or ()) for answer in kept]
    assert sums == pytest.approx([logprob for _, logprob in ANSWERS.values()], abs=0.02)


@only(those("prompt_logprobs"))
async def test_a_prompt_has_log_probabilities_too(started: Started) -> None:
    prompt = chat(FRANCE)
    kept = await started.one(asking(prompt, prompt_logprobs=1, max_tokens=2))
    rows = kept.items[0].prompt_logprobs
    assert rows[0] is None
    assert all(id in [each.token_id for each in row] for id, row in zip(prompt[1:], rows[1:], strict=True))


@only(those("cached"))
async def test_a_repeated_prefix_is_served_from_the_cache(started: Started) -> None:
    prompt = list(range(300, 500))
    block = started.info.kv_cache_block_size
    assert block

    async def cached(**more: Any) -> int:
        usage = (await started.one(asking(prompt, max_tokens=2, **more))).last.completion_usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        return usage.prompt_tokens_details["cached_tokens"]

    salted = await started.one(asking(prompt, max_tokens=2, cache_salt="none"))
    if started.name in ON_A_GPU and salted.error is not None:  # SGLang 0.5.17
        assert "has no cache_salt" in salted.error.message
        assert await cached() == 0
        assert await cached() == (len(prompt) - 1) // block * block
        return
    assert await cached(cache_salt="one") == 0
    assert await cached(cache_salt="one") == (len(prompt) - 1) // block * block
    assert await cached(cache_salt="two") == 0
