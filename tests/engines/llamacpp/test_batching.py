"""Many requests at once: each gets what it would get alone, and all that is held is known."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any

import pytest

from dynamo.engines.base import CacheOwner, DeathSource, KvSource, LoadSource, RankLoad
from dynamo.engines.llamacpp.engine import LlamaCppEngine
from dynamo.kv.hashing import prompt_hashes
from dynamo.kv.messages import KvChange
from dynamo.protocols.engine import PreprocessedRequest
from dynamo.protocols.errors import EngineShutdown
from engines.llamacpp.conftest import Starting
from engines.llamacpp.test_blocks import replay
from support.asking import answer, asking, chat
from support.sinks import Kept
from support.waiting import until

SHARED = "Please read this with care, because it stands before many questions. " * 4
QUESTIONS = [
    "What is the capital of France?",
    "What is the capital of Japan?",
    "Say hello",
    SHARED + "What is the capital of Italy?",
    SHARED + "What is two plus two?",
    "Count from one to ten, and then back again, please. " * 8,
]


def follow(engine: LlamaCppEngine) -> set[int]:
    """The blocks that a strict reader of the engine's KV events knows."""
    known: set[int] = set()

    def read(rank: int, changes: list[KvChange]) -> None:
        assert rank == 0
        replay(known, changes)

    engine.on_kv_events(read)
    return known


def mixed(count: int) -> list[PreprocessedRequest]:
    draw = random.Random(3)
    return [
        asking(draw.choice(QUESTIONS), max_tokens=draw.randint(1, 40), ignore_eos=draw.random() < 0.5)
        for _ in range(count)
    ]


async def alone(starting: Starting, requests: list[PreprocessedRequest]) -> list[list[int]]:
    engine = await starting(cache_type="f32")
    return [(await answer(engine, request)).ids for request in requests]


@pytest.mark.parametrize(
    "pressed",
    [
        {},
        {"n_batch": 64, "max_num_seqs": 32, "cached_seqs": 32},
        {"n_ctx": 512, "context_length": 512, "max_num_seqs": 8, "cached_seqs": 4},
    ],
    ids=["at ease", "small batches", "little room"],
)
async def test_32_mixed_requests_get_what_each_gets_alone(starting: Starting, pressed: dict[str, Any]) -> None:
    requests = mixed(32)
    expected = await alone(starting, requests)
    engine = await starting(cache_type="f32", **pressed)
    known = follow(engine)
    sinks = [Kept() for _ in requests]
    for request, sink in zip(requests, sinks, strict=True):
        engine.generate(request, sink)
    await asyncio.gather(*(sink.done for sink in sinks))
    assert [sink.ids for sink in sinks] == expected
    await until(engine.quiet)
    assert known == engine.blocks.hashes()
    await engine._running().call(engine.blocks.check)


async def test_a_request_may_join_at_any_step(starting: Starting) -> None:
    requests = mixed(12)
    expected = await alone(starting, requests)
    engine = await starting(cache_type="f32")
    sinks: list[Kept] = []
    everything = asyncio.get_running_loop().create_future()

    def join() -> None:
        if len(sinks) < len(requests):
            sinks.append(Kept(join))
            engine.generate(requests[len(sinks) - 1], sinks[-1])
        elif not everything.done():
            everything.set_result(None)

    join()
    for at in range(len(requests)):
        while len(sinks) <= at:
            join()
        await sinks[at].done
    assert [sink.ids for sink in sinks] == expected


async def test_requests_that_exceed_the_cache_together_wait_or_start_over(starting: Starting) -> None:
    requests = [asking(chat(f"Tell me number {at}"), ignore_eos=True, max_tokens=200) for at in range(6)]
    expected = await alone(starting, requests)
    engine = await starting(cache_type="f32", n_ctx=256, context_length=256, max_num_seqs=6, cached_seqs=4)
    sinks = [Kept() for _ in requests]
    for request, sink in zip(requests, sinks, strict=True):
        engine.generate(request, sink)
    await asyncio.gather(*(sink.done for sink in sinks))
    assert [sink.ids for sink in sinks] == expected
    assert engine.scheduler.preemptions > 0


async def test_a_prefix_is_computed_once_and_reported_as_cached(engine: LlamaCppEngine) -> None:
    known = follow(engine)
    prompt = chat(SHARED + "What is the capital of Italy?")
    first = await answer(engine, asking(prompt))
    again = await answer(engine, asking(prompt))
    assert first.ids == again.ids
    assert _cached(first) == 0
    assert _cached(again) == (len(prompt) - 1) // 16 * 16
    assert known >= set(prompt_hashes(prompt, 16))


async def test_generated_tokens_are_found_by_the_next_turn(engine: LlamaCppEngine) -> None:
    prompt = chat("Say hello")
    first = await answer(engine, asking(prompt, ignore_eos=True, max_tokens=40))
    turn = [*prompt, *first.ids, *chat("And again")]
    assert _cached(await answer(engine, asking(turn))) == (len(prompt) + 39) // 16 * 16


async def test_a_cache_salt_keeps_tenants_apart(engine: LlamaCppEngine) -> None:
    prompt = chat(SHARED)
    await answer(engine, asking(prompt, cache_salt="one"))
    assert _cached(await answer(engine, asking(prompt, cache_salt="two"))) == 0
    assert _cached(await answer(engine, asking(prompt))) == 0
    assert _cached(await answer(engine, asking(prompt, cache_salt="one"))) > 0


async def test_the_block_size_is_the_one_asked_for(starting: Starting) -> None:
    engine = await starting(kv_cache_block_size=64)
    known = follow(engine)
    prompt = chat(SHARED * 2)
    await answer(engine, asking(prompt, max_tokens=1))
    assert known == set(prompt_hashes(prompt, 64))


async def test_an_aborted_request_ends_at_once_and_frees_everything(engine: LlamaCppEngine) -> None:
    flowing = asyncio.Event()
    sink = Kept(flowing.set)
    running = engine.generate(asking("Say hello", ignore_eos=True, max_tokens=1500), sink)
    await flowing.wait()
    running.abort()
    assert sink.done.done()
    assert sink.last.finish_reason == "cancelled"
    running.abort()
    await until(engine.quiet)
    assert engine.blocks.in_use == 0
    assert await engine.clear_cache()
    assert engine.blocks.used == 0


async def test_an_abort_in_a_long_prefill_leaves_the_others_as_they_are(starting: Starting) -> None:
    (expected,) = await alone(starting, [asking("Say hello", ignore_eos=True, max_tokens=60)])
    engine = await starting(cache_type="f32", n_batch=2048)
    flowing = asyncio.Event()
    beside = Kept(flowing.set)
    engine.generate(asking("Say hello", ignore_eos=True, max_tokens=60), beside)
    await flowing.wait()
    for _ in range(5):
        sink = Kept()
        running = engine.generate(asking([7, 8, 9] * 600), sink)
        await asyncio.sleep(0)
        running.abort()
        assert sink.last.finish_reason == "cancelled"
    await beside.done
    assert beside.ids == expected
    await until(engine.quiet)
    await engine._running().call(engine.blocks.check)


async def test_aborts_at_random_lose_nothing(engine: LlamaCppEngine) -> None:
    known = follow(engine)
    draw = random.Random(5)
    sinks = []
    for request in mixed(24):
        tokens_left = draw.randint(0, 6)
        sink = Kept()
        sinks.append(sink)
        running = engine.generate(request, sink)

        def count(running: Any = running, left: list[int] = [tokens_left]) -> None:  # noqa: B006
            left[0] -= 1
            if left[0] == 0:
                running.abort()

        sink._on_tokens = count
        if not tokens_left:
            running.abort()
    await asyncio.gather(*(sink.done for sink in sinks))
    await until(engine.quiet)
    assert engine.blocks.in_use == 0
    assert known == engine.blocks.hashes()
    await engine._running().call(engine.blocks.check)


async def test_an_abort_of_a_waiting_request_ends_no_step(starting: Starting) -> None:
    engine = await starting(max_num_seqs=1)
    assert engine._thread is not None
    aborts: list[bool] = []
    engine._thread._decoder.abort = aborts.append  # type: ignore[method-assign, assignment]
    flowing = asyncio.Event()
    first = engine.generate(asking("Say hello", ignore_eos=True, max_tokens=1500), Kept(flowing.set))
    await flowing.wait()
    engine.generate(asking("Say hello"), Kept()).abort()
    first.abort()
    await until(engine.quiet)
    assert True not in aborts


async def test_clients_that_leave_in_their_prefill_do_not_stop_the_others(engine: LlamaCppEngine) -> None:
    flowing = asyncio.Event()
    beside = Kept(flowing.set)
    staying = engine.generate(asking("Say hello", ignore_eos=True, max_tokens=1500), beside)
    await flowing.wait()
    before = len(beside.ids)
    leaving = engine.generate(asking([7, 8, 9] * 120), Kept())
    for at in range(1, 9):
        await until(lambda job=leaving._job: job.held is not None)
        following = engine.generate(asking([7, 8, 9 + at] * 120), Kept())
        leaving.abort()
        leaving = following
    assert len(beside.ids) - before >= 3
    leaving.abort()
    staying.abort()


async def test_a_call_that_the_thread_never_reaches_fails(engine: LlamaCppEngine) -> None:
    stepping, loop, release = asyncio.Event(), asyncio.get_running_loop(), threading.Event()

    def explode() -> list[Any]:
        loop.call_soon_threadsafe(stepping.set)
        release.wait()
        raise RuntimeError("boom")

    engine.scheduler.step = explode  # type: ignore[method-assign]
    sink = Kept()
    engine.generate(asking("Say hello"), sink)
    await stepping.wait()
    clearing = asyncio.ensure_future(engine.clear_cache())
    loop.call_soon(release.set)
    with pytest.raises(EngineShutdown):
        await clearing
    await sink.done


async def test_a_step_reaches_the_event_loop_in_one_call(engine: LlamaCppEngine) -> None:
    steps: list[int] = []
    deliver = engine._thread._deliver  # type: ignore[union-attr]
    engine._thread._deliver = lambda report: (steps.append(len(report.outputs)), deliver(report))  # type: ignore
    sinks = [Kept() for _ in range(8)]
    for sink in sinks:
        engine.generate(asking("Say hello", ignore_eos=True, max_tokens=30), sink)
    await asyncio.gather(*(sink.done for sink in sinks))
    assert sum(steps) == 8 * 30
    assert max(steps) == 8
    assert len([count for count in steps if count]) < 8 * 30 / 4


async def test_the_cache_is_cleared_only_while_nothing_runs(engine: LlamaCppEngine) -> None:
    known = follow(engine)
    sink = Kept()
    running = engine.generate(asking("Say hello", ignore_eos=True, max_tokens=1500), sink)
    assert await engine.clear_cache() is False
    running.abort()
    assert await engine.clear_cache() is True
    assert known == engine.blocks.hashes() == set()


async def test_load_is_reported_while_busy_and_once_idle(engine: LlamaCppEngine) -> None:
    loads: list[RankLoad] = []
    engine.on_load(loads.append)
    await answer(engine, asking(SHARED, ignore_eos=True, max_tokens=100))
    await until(lambda: bool(loads) and loads[-1].active_decode_blocks == 0)
    assert any(load.active_decode_blocks for load in loads)
    assert loads[-1].active_prefill_tokens == 0
    assert loads[-1].kv_used_blocks == len(engine.blocks.hashes())
    assert loads[-1].kv_total_blocks == 512


async def test_a_dead_thread_fails_its_requests_so_that_they_migrate(engine: LlamaCppEngine) -> None:
    reasons: list[str] = []
    engine.on_death(reasons.append)

    def explode() -> list[Any]:
        raise RuntimeError("boom")

    engine.scheduler.step = explode  # type: ignore[method-assign]
    sink = await answer(engine, asking("Say hello"))
    assert isinstance(sink.error, EngineShutdown)
    assert reasons == ["llamacpp died: boom"]
    assert engine.quiet()


async def test_it_declares_what_it_can_do(engine: LlamaCppEngine) -> None:
    assert isinstance(engine, KvSource)
    assert isinstance(engine, LoadSource)
    assert isinstance(engine, CacheOwner)
    assert isinstance(engine, DeathSource)


def _cached(sink: Kept) -> int:
    usage = sink.last.completion_usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    return usage.prompt_tokens_details["cached_tokens"]
