"""A mocker that hands over runs of decode steps together does everything else as one that does not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo.engines.mocker import MockerArgs, MockerEngine
from dynamo.engines.mocker.ranks import Ranks
from dynamo.engines.mocker.tokens import MockVocabulary, answer_for
from dynamo.kv.messages import KvChange, Removed, Stored
from dynamo.lab.simulate.virtual_time import run
from dynamo.protocols.engine import EngineOutput, PreprocessedRequest, StopConditions
from dynamo.protocols.errors import DynamoException

ARGS = MockerArgs(block_size=8, num_gpu_blocks=48, max_num_seqs=4, max_num_batched_tokens=64, watermark=0)


class Seen:
    def __init__(self) -> None:
        self.ids: list[int] = []
        self.first: float | None = None
        self.ended: float | None = None

    def tokens(self, ids: list[int]) -> None:
        if self.first is None:
            self.first = asyncio.get_running_loop().time()
        self.ids += ids

    def item(self, value: Any) -> None:
        assert isinstance(value, EngineOutput)
        self.tokens(value.token_ids)

    def end(self) -> None:
        self.ended = asyncio.get_running_loop().time()

    def fail(self, error: DynamoException) -> None:
        raise error


Asked = tuple[float, int, int]
"""When, the length of the prompt and that of the answer."""


def follow(held: set[int], changes: list[KvChange]) -> None:
    for change in changes:
        if isinstance(change, Stored):
            held.update(change.sequence_hashes)
        elif isinstance(change, Removed):
            held.difference_update(change.sequence_hashes)


def request(prompt: int, length: int) -> PreprocessedRequest:
    return PreprocessedRequest(
        token_ids=[7] * prompt, stop_conditions=StopConditions(max_tokens=length, ignore_eos=True)
    )


def answered(asked: list[Asked]) -> tuple[list[Seen], set[int]]:
    async def work() -> tuple[list[Seen], set[int]]:
        engine = MockerEngine(ARGS, coarse=True)
        held: set[int] = set()
        engine.on_kv_events(lambda rank, changes: follow(held, changes))
        await engine.start()

        async def ask(when: float, prompt: int, length: int) -> Seen:
            await asyncio.sleep(when)
            seen = Seen()
            engine.generate(request(prompt, length), seen)
            while seen.ended is None:
                await asyncio.sleep(0.01)
            return seen

        found = await asyncio.gather(*(ask(*each) for each in asked))
        assert engine.quiet()
        await engine.close()
        return found, held

    return run(work())


def step_by_step(asked: list[Asked]) -> tuple[list[Seen], set[int]]:
    """The same with one iteration after the other, each begun when the one before has ended."""
    ranks, held = Ranks(ARGS), set[int]()
    found = [Seen() for _ in asked]
    arriving = sorted(range(len(asked)), key=lambda number: asked[number][0])
    now = 0.0
    while arriving or ranks.busy:
        while arriving and asked[arriving[0]][0] <= now:
            number = arriving.pop(0)
            _, prompt, length = asked[number]
            ranks.add(number, [7] * prompt, answer_for(request(prompt, length), MockVocabulary(), ARGS.context_limit))
        if not ranks.busy:
            now = asked[arriving[0]][0]
            continue
        iteration = ranks.step(now)
        now = iteration.ends
        for _, changes in iteration.events:
            follow(held, changes)
        for number, ids in iteration.take_tokens():
            found[number].first = now if found[number].first is None else found[number].first
            found[number].ids += ids
        for done in iteration.finished:
            found[done.request_id].ended = now
    return found, held


# Apart by more than the rounding within which a coarse mocker counts times as equal.
moments = st.integers(0, 400).map(lambda number: number * 0.00131)
requests = st.tuples(moments, st.integers(1, 60), st.integers(1, 60))


@settings(deadline=None)
@given(st.lists(requests, min_size=1, max_size=6, unique_by=lambda each: each[0]))
def test_tokens_times_and_the_cache_are_those_of_single_steps(asked: list[Asked]) -> None:
    (coarse, coarse_held), (single, single_held) = answered(asked), step_by_step(asked)
    for one, other in zip(coarse, single, strict=True):
        assert one.ids == other.ids
        assert one.first == pytest.approx(other.first, abs=1e-5)
        assert one.ended == pytest.approx(other.ended, abs=1e-5)
    assert coarse_held == single_held


def test_a_client_that_leaves_in_the_middle_of_a_run_gets_the_tokens_so_far() -> None:
    async def work() -> tuple[int, bool]:
        engine, seen = MockerEngine(ARGS, coarse=True), Seen()
        await engine.start()
        running = engine.generate(request(8, 200), seen)
        await asyncio.sleep(0.5)
        running.abort()
        quiet = engine.quiet()
        await engine.close()
        return len(seen.ids), quiet

    tokens, quiet = run(work())
    assert 20 < tokens < 200
    assert quiet
