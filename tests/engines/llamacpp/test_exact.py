"""With --exact an answer of a quantised model depends on nothing but its request."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from dynamo.engines.base import EngineError
from dynamo.engines.llamacpp.engine import LlamaCppEngine
from dynamo.model import LocalModel
from dynamo.protocols.engine import PreprocessedRequest, SamplingOptions, StopConditions
from engines.llamacpp.conftest import Starting
from support.real_model import smollm2
from support.sinks import Kept

TOKENS = 12
PROMPTS = [[2 + (7 * at + 31 * place) % 40_000 for place in range(9 + 11 * at)] for at in range(5)]


def ask(engine: LlamaCppEngine, prompt: Sequence[int], resumed: Sequence[int] = ()) -> asyncio.Future[list[int]]:
    kept = Kept()
    request = PreprocessedRequest(
        token_ids=[*prompt, *resumed],
        resumed_tokens=len(resumed),
        sampling_options=SamplingOptions(temperature=0.0),
        stop_conditions=StopConditions(max_tokens=TOKENS - len(resumed), ignore_eos=True),
    )
    engine.generate(request, kept)

    async def ids() -> list[int]:
        await kept.done
        return [*resumed, *kept.ids]

    return asyncio.ensure_future(ids())


async def test_answers_equal_those_alone_beside_others_again_and_on_another_worker(starting: Starting) -> None:
    path = smollm2()
    engine = await starting(model=LocalModel(source=str(path), path=path), exact=True)
    alone = [await ask(engine, prompt) for prompt in PROMPTS]
    assert await asyncio.gather(*(ask(engine, prompt) for prompt in (*PROMPTS, *PROMPTS))) == [*alone, *alone]
    for prompt, whole in zip(PROMPTS, alone, strict=True):
        for sent in (1, 5, TOKENS - 1):
            assert await ask(engine, prompt, whole[:sent]) == whole


async def test_what_would_not_be_exact_is_refused(starting: Starting) -> None:
    for more in ({"kv_offload_gb": 1.0}, {"disaggregation_mode": "decode"}):
        with pytest.raises(EngineError, match="--exact computes each prompt anew"):
            await starting(exact=True, **more)


async def test_without_it_answers_that_were_computed_in_the_same_steps_are_equal(starting: Starting) -> None:
    path = smollm2()
    engine = await starting(model=LocalModel(source=str(path), path=path))

    async def together() -> list[list[int]]:
        """All of them wait when the thread goes on, so that each step has the same tokens every time."""
        assert await engine.clear_cache()
        arrived = threading.Event()
        waiting = asyncio.ensure_future(engine._running().call(arrived.wait))
        await asyncio.sleep(0)
        asked = [ask(engine, prompt) for prompt in PROMPTS]
        arrived.set()
        await waiting
        return await asyncio.gather(*asked)

    assert await together() == await together()
