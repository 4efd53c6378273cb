"""llama.cpp in two halves: one engine computes the prompt, another one goes on from its state."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import random
import shutil
import time
from pathlib import Path

import pytest

from dynamo.engines.base import EngineInfo
from dynamo.engines.llamacpp.engine import LlamaCppEngine
from dynamo.engines.registry import EngineSpec
from dynamo.model import LocalModel
from dynamo.model.source import bundled
from dynamo.protocols.card import WorkerType
from dynamo.protocols.engine import PreprocessedRequest
from dynamo.runtime import Context
from engines.llamacpp.conftest import Starting
from support.asking import answer, asking, chat
from support.sinks import Kept
from support.splitting import SplitStack
from support.waiting import until

CANCELS = int(os.environ.get("HANDOFF_CANCELS", "48"))
WORDS = ("please", "read", "this", "with", "care", "because", "it", "stands", "before", "many", "questions")


def mixed(count: int) -> list[PreprocessedRequest]:
    chance = random.Random(7)
    texts = [" ".join(chance.choices(WORDS, k=chance.choice((2, 40, 200)))) for _ in range(count)]
    return [asking(chat(text), max_tokens=chance.choice((1, 12)), ignore_eos=True) for text in texts]


async def test_split_answers_are_token_for_token_those_of_one_engine(starting: Starting) -> None:
    whole = await starting()
    async with SplitStack() as side:
        engines = {mode: await starting(disaggregation_mode=mode) for mode in ("prefill", "decode")}
        for mode, engine in engines.items():
            await side.worker(engine, EngineInfo(worker_type=WorkerType(mode), kv_cache_block_size=16))
        await side.ready()
        requests = mixed(12)
        expected = [(await answer(whole, request)).ids for request in requests]
        answers = await asyncio.gather(*(side.ask(request) for request in requests))
        assert [sink.ids for sink, _ in answers] == expected
        assert set(side.reasons) == {(True, "always"), (False, "short")}
        await until(lambda: engines["prefill"].held_blocks() == 0)
        for engine in engines.values():
            await until(lambda engine=engine: engine.quiet() and engine.blocks.in_use == 0)
            await engine._running().call(engine.blocks.check)


async def test_clients_that_leave_at_any_moment_of_a_hand_off_leave_nothing_behind(starting: Starting) -> None:
    chance, numbers = random.Random(15), itertools.count()
    async with SplitStack() as side:
        engines = {mode: await starting(disaggregation_mode=mode) for mode in ("prefill", "decode")}
        for mode, engine in engines.items():
            await side.worker(engine, EngineInfo(worker_type=WorkerType(mode), kv_cache_block_size=16))
        await side.ready()

        def distinct() -> PreprocessedRequest:
            return asking(chat(f"{next(numbers)} " + "words " * 60), max_tokens=4, ignore_eos=True)

        begun = time.perf_counter()
        await asyncio.gather(*(side.ask(distinct()) for _ in range(8)))
        longest = time.perf_counter() - begun

        async def leaves() -> None:
            context, sink = Context(), Kept()
            delivery = side.delivery(distinct(), context, sink)
            sending = asyncio.create_task(delivery.start())
            await asyncio.wait({sink.done}, timeout=chance.uniform(0, longest))
            context.kill()
            await asyncio.gather(sending, return_exceptions=True)
            await delivery.close()

        for _ in range(CANCELS // 8):
            await asyncio.gather(*(leaves() for _ in range(8)))
        for engine in engines.values():
            await until(lambda engine=engine: engine.quiet() and engine.held_blocks() == engine.blocks.in_use == 0)
            await engine._running().call(engine.blocks.check)
        sink, _ = await side.ask(distinct())
        assert len(sink.ids) == 4
        print(f"\n{CANCELS} left; {dict(side.reasons)}")


@pytest.mark.parametrize("other", ["weights", "cache_type"])
async def test_engines_with_other_weights_or_another_data_type_are_not_paired_and_that_is_said_once(
    starting: Starting, tmp_path: Path, caplog: pytest.LogCaptureFixture, other: str
) -> None:
    caplog.set_level(logging.WARNING, "dynamo.router")
    options = {"cache_type": "q8_0"} if other == "cache_type" else {}
    path = Path(shutil.copytree(bundled(), tmp_path / "model"))
    if other == "weights":
        with (path / "tiny.gguf").open("r+b") as weights:
            weights.seek(-64, os.SEEK_END)
            weights.write(bytes(64))
    arguments = {"n_threads": 1, "disaggregation_mode": "prefill", **options}
    prefill = LlamaCppEngine(EngineSpec(model=LocalModel(source="tiny", path=path), extra_engine_args=arguments))
    async with SplitStack() as side:
        await side.worker(prefill, await prefill.start())
        decode = await starting(disaggregation_mode="decode")
        await side.worker(decode, EngineInfo(worker_type=WorkerType.Decode, kv_cache_block_size=16))
        await side.ready()
        sink, _ = await side.ask(mixed(1)[0])
        assert sink.error is None
        assert side.reasons == {(False, "no_prefill"): 1}
    (line,) = [record.getMessage() for record in caplog.records if "cannot hand over" in record.getMessage()]
    assert f"it has hand-off by {prefill.transfer}, not by {decode.transfer}" in line


async def test_a_state_from_another_engine_is_bit_for_bit_what_the_own_cache_holds(starting: Starting) -> None:
    # Greedy answers alone would prove less: how requests are batched also changes the last bits of a probability.
    here, there, source = [await starting(max_num_seqs=1, cached_seqs=2) for _ in range(3)]
    for length in (20, 47, 150, 333):
        for engine in (here, there, source):
            assert await engine.clear_cache()
        tokens = chat(" ".join(WORDS[at % len(WORDS)] for at in range(length)))
        for engine in (here, source):
            await answer(engine, asking(tokens, max_tokens=1))
        state = await source.export_prefix(tokens)
        assert state is not None
        assert await there.import_prefix(tokens, state) == len(tokens) // 16 * 16
        asked = asking(tokens, max_tokens=12, ignore_eos=True, logprobs=3)
        expected, continued = [await answer(engine, asked) for engine in (here, there)]
        assert continued.ids == expected.ids
        assert continued.last.completion_usage == expected.last.completion_usage
        assert [item.top_logprobs for item in continued.items] == [item.top_logprobs for item in expected.items]


async def test_held_prompts_give_way_to_requests_that_find_no_room(starting: Starting) -> None:
    engine = await starting(n_ctx=512, context_length=512)
    first = chat("word " * 100)
    await answer(engine, asking(first, max_tokens=1))
    held = await engine.hold_prefix(first)
    assert held is not None
    assert engine.held_blocks() == held.blocks
    sink = await answer(engine, asking(chat("other " * 150), max_tokens=1, ignore_eos=True))
    assert sink.error is None
    assert engine.held_blocks() == 0
    await engine.release_prefix(held)
    await engine._running().call(engine.blocks.check)
