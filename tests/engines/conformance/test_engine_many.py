"""Many requests at once, and requests that end early."""

from __future__ import annotations

import random
from typing import Any

import pytest

from dynamo.engines.base import CacheOwner
from dynamo.protocols.engine import PreprocessedRequest
from engines.conformance.conftest import Started, only
from engines.conformance.features import FEATURES, Has, those
from support.asking import asking
from support.sinks import Kept
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="session")

SHARED = "Please read this with care, because it stands before many questions. " * 4
QUESTIONS = [
    "What is the capital of France?",
    "Say hello",
    "Tell me a story",
    SHARED + "What is the capital of Italy?",
    SHARED + "What is two plus two?",
]


def mixed(started: Started) -> list[PreprocessedRequest]:
    """Long and short ones, greedy, seeded, biased and guided, as far as the engine repeats them."""
    draw = random.Random(3)

    def has(feature: str) -> bool:
        return FEATURES[feature].engines[started.name] is Has.YES

    kinds: list[dict[str, Any]] = [{}, {"ignore_eos": True}, {"stop_token_ids": [24]}, {"logit_bias": {"24": -100.0}}]
    if has("seed"):
        kinds.append({"temperature": 1.0, "seed": 11})
    if has("guided"):
        kinds.append({"guided_decoding": {"choice": ["Rome", "Oslo"]}})
    return [
        asking(draw.choice(QUESTIONS), max_tokens=draw.randint(1, 40), **kinds[at % len(kinds)]) for at in range(32)
    ]


async def test_32_mixed_requests_equal_their_solo_runs(started: Started) -> None:
    requests = mixed(started)
    alone = [(await started.one(request)).ids for request in requests]
    together = [kept.ids for kept in await started.ask(*requests)]
    assert together == alone
    assert all(alone)


async def test_aborted_requests_free_everything(started: Started) -> None:
    prompt = list(range(300, 800))
    sinks = [Kept() for _ in range(8)]
    running = [started.engine.generate(asking(prompt, max_tokens=500, ignore_eos=True), sink) for sink in sinks]
    running[0].abort()
    for sink in sinks[1:]:
        await until(lambda sink=sink: sink.ids)
    assert not started.engine.quiet()
    for each in running:
        each.abort()
        each.abort()
    for sink in sinks:
        await sink.done
        assert len(sink.ids) < 500
        assert sink.error is not None or sink.last.finish_reason == "cancelled"
    await until(started.engine.quiet)
    if FEATURES["load"].engines[started.name] is Has.YES:
        await until(lambda: started.loads and not started.loads[-1].active_decode_blocks)
        assert not started.loads[-1].active_prefill_tokens
    assert (await started.one(asking("Say hello"))).ids


async def test_an_abort_after_the_end_does_nothing(started: Started) -> None:
    sink = Kept()
    running = started.engine.generate(asking("Say hello", max_tokens=2), sink)
    await sink.done
    running.abort()
    assert sink.last.finish_reason == "length"
    await until(started.engine.quiet)


@only(those("clear_cache"))
async def test_the_cache_can_be_emptied(started: Started) -> None:
    assert isinstance(started.engine, CacheOwner)
    prompt = list(range(800, 1000))
    for _ in range(2):
        kept = await started.one(asking(prompt, max_tokens=2))
    usage = kept.last.completion_usage
    assert usage
    assert usage.prompt_tokens_details
    assert usage.prompt_tokens_details["cached_tokens"]
    await until(started.engine.quiet)
    assert await started.engine.clear_cache()
    usage = (await started.one(asking(prompt, max_tokens=2))).last.completion_usage
    assert usage
    assert usage.prompt_tokens_details == {"cached_tokens": 0}
