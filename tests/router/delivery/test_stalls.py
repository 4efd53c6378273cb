"""Streams that stall: which a sweep finds, and what becomes of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.protocols.engine import EngineOutput
from dynamo.protocols.errors import ConnectionTimeout
from dynamo.router import stream_watch
from dynamo.router.stream_watch import PREFILL_SECONDS_PER_TOKEN, StallClock, StallLimits, StreamClock
from dynamo.runtime import Local, breaker
from support.scripted import Asked, RouterSide, ScriptedWorker, asking, routing
from support.waiting import PATIENCE, until

LIMITS = StallLimits(between=10, first=40)


def stream(clocks: StallClock, instance_id: int = 1, prompt_tokens: int = 0, now: float = 0.0) -> Any:
    nothing: Any = None
    clock: Any = StreamClock(nothing, instance_id, prompt_tokens, now)
    clocks.add(clock, clock)  # a stall names it
    return clock


def stalled(clocks: StallClock, now: float) -> list[Any]:
    return [stall.stream for stall in clocks.sweep(now)]


def test_a_stream_that_has_begun_stalls_after_its_limit() -> None:
    clocks = StallClock(LIMITS)
    one = stream(clocks)
    one.moved = True
    assert stalled(clocks, 1) == []
    assert stalled(clocks, 11) == []
    assert stalled(clocks, 12) == [one]


def test_until_the_first_token_the_limit_is_larger_and_grows_with_the_prompts_that_wait() -> None:
    clocks = StallClock(LIMITS)
    long, short = stream(clocks, prompt_tokens=1000), stream(clocks, prompt_tokens=1)
    late = LIMITS.first + 1001 * PREFILL_SECONDS_PER_TOKEN
    assert stalled(clocks, late) == []
    assert stalled(clocks, late + 1) == [long, short]


def test_a_request_that_waits_behind_others_that_move_is_queued_and_not_stalled() -> None:
    clocks = StallClock(LIMITS)
    waiting, running = stream(clocks), stream(clocks)
    for now in range(1, 500):
        running.moved = True
        assert stalled(clocks, now) == []
    clocks.remove(running)
    assert stalled(clocks, 540) == [waiting]


def test_a_stream_that_was_preempted_has_as_long_as_one_that_has_not_begun() -> None:
    clocks = StallClock(LIMITS)
    preempted, running = stream(clocks), stream(clocks)
    preempted.moved = True
    found = []
    for now in range(1, 60):
        running.moved = True
        found += [(now, stall.hung) for stall in clocks.sweep(now) if stall.stream is preempted]
    assert found[0] == (42, False)


def test_all_streams_of_an_instance_that_hangs_stall_together_and_no_others() -> None:
    clocks = StallClock(LIMITS)
    begun, new, elsewhere = stream(clocks), stream(clocks, now=9), stream(clocks, instance_id=2, now=9)
    begun.moved = True
    assert stalled(clocks, 1) == []
    assert stalled(clocks, 12) == [begun, new]
    assert elsewhere in dict(clocks)


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), max_size=60))
def test_without_limits_nothing_ever_stalls(history: list[tuple[int, bool, bool]]) -> None:
    clocks = StallClock(StallLimits(between=0, first=0))
    for now, (instance_id, moved, removed) in enumerate(history):
        clock = stream(clocks, instance_id, now=now)
        clock.moved = moved
        if removed:
            clocks.remove(clock)
        assert clocks.sweep(now * 1000.0) == []


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_watch, "SWEEP_SECONDS", 0.01)
    monkeypatch.setattr(breaker, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(breaker, "PATIENCE_SECONDS", 0.05)


@asynccontextmanager
async def one_hangs() -> AsyncIterator[tuple[RouterSide, ScriptedWorker, ScriptedWorker]]:
    """A router that knows a worker that hangs and one that answers."""
    local = Local()
    hangs = ScriptedWorker(local, hold=True, health_check={"token_ids": [1]})
    async with (
        asyncio.timeout(PATIENCE),
        routing(local, mode="round-robin", stream_stall_secs=0.05, first_token_stall_secs=0.05) as side,
        hangs,
    ):
        await until(lambda: hangs.id in side.client.instance_set)
        async with ScriptedWorker(local) as works:
            await until(lambda: works.id in side.client.instance_set)
            yield side, hangs, works


async def on_hanging(side: RouterSide, hangs: ScriptedWorker, limit: int) -> Asked:
    """A request that the hanging worker got."""
    while True:
        asked = Asked(side.router, asking(""), limit=limit)
        await asked.start()
        if asked.delivery.instance_id == hangs.id:
            return asked
        await asked.done()


async def test_a_stream_that_stalls_moves_and_its_worker_is_out_until_a_probe_is_answered() -> None:
    async with one_hangs() as (side, hangs, works):
        asked = await on_hanging(side, hangs, limit=1)
        held = await hangs.held.get()
        held.outlet.tokens([7])
        await asked.done()
        assert asked.error is None
        assert asked.delivery.instance_id == works.id
        assert list(works.requests[-1].token_ids)[-1] == 7
        held.outlet.item(EngineOutput(token_ids=[8]))  # too late
        assert asked.tokens_seen == [7, 1, 2]
        for _ in range(4):
            assert await side.ask(asking("")) == works.id
        hangs.hold = False
        await until(lambda: hangs.id in side.client.instance_set.routable())


async def test_a_stream_that_stalls_and_cannot_move_fails() -> None:
    async with one_hangs() as (side, hangs, _):
        asked = await on_hanging(side, hangs, limit=0)
        await asked.done()
        assert isinstance(asked.error, ConnectionTimeout)
