"""What many requests share is computed ahead by workers that have nothing to do."""

from __future__ import annotations

import random
from contextlib import AsyncExitStack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.kv.index.overlaps import Overlap, Overlaps
from dynamo.kv.messages import WorkerRank
from dynamo.pipeline.preprocess import Prepared
from dynamo.protocols.card import ModelRuntimeConfig
from dynamo.protocols.engine import PreprocessedRequest, Routing, StopConditions
from dynamo.protocols.errors import Unknown
from dynamo.router.choice.choose import choose
from dynamo.router.choice.copies import AGAIN_SECONDS, LEAST_TOKENS, RecentCopies, idle_candidates
from dynamo.router.choice.cost import CostConfig
from dynamo.router.choice.fleet import Capacity, Fleet
from dynamo.router.load_book import Loads
from dynamo.runtime import Local
from support.scripted import BLOCK, Asked, RouterSide, ScriptedWorker, routing
from support.waiting import until

SYSTEM = list(range(4002))
SHARED = len(SYSTEM) // BLOCK * BLOCK
ROW = st.tuples(st.integers(0, 3), st.sampled_from([0, 50, 90, 100]), st.floats(0, 1e5), st.sampled_from([150, 16384]))


@given(
    rows=st.lists(ROW, min_size=1, max_size=8),
    sharing=st.integers(3, 9),
    depth=st.integers(64, 100),
    told=st.integers(0, 8),
)
def test_copies_go_to_the_idle_who_lack_the_prefix_and_never_beyond_the_need(
    rows: list[tuple[int, int, float, int]], sharing: int, depth: int, told: int
) -> None:
    fleet = Fleet({WorkerRank(n): Capacity(total_blocks=row[3]) for n, row in enumerate(rows)}, 16)
    requests = [float(row[0]) for row in rows]
    nothing = [0] * len(rows)
    loads = Loads(
        [0.0] * len(rows), [0.0] * len(rows), nothing, [float(count) for count in requests], [row[2] for row in rows]
    )
    held = Overlaps.of({WorkerRank(n): Overlap(row[1]) for n, row in enumerate(rows)})
    choice = choose(1600, 100, fleet, held, loads, CostConfig(), random.Random(1))
    found = idle_candidates(choice, depth, sharing, lambda worker: worker.worker_id == told)
    places = [at for at, _ in found]
    assert choice.at not in places
    assert told not in places
    everybody = idle_candidates(choice, depth, sharing, lambda _: False)
    fit = [
        at
        for at, row in enumerate(rows)
        if not row[0] and (depth - row[1]) * 16 >= LEAST_TOKENS and depth <= row[3] / 2
    ]
    assert len(found) == min(len(everybody), len({*fit} - {choice.at, told}))
    assert [missing for _, missing in found] == [depth - rows[at][1] for at in places]
    for at in places:
        running, cached, _, total = rows[at]
        assert running == 0
        assert (depth - cached) * 16 >= LEAST_TOKENS
        assert depth <= total / 2
    holders = sum(at == choice.at or (depth - row[1]) * 16 < LEAST_TOKENS for at, row in enumerate(rows))
    assert not places or holders + len(places) <= sharing
    traffic = [rows[at][2] for at in places]
    assert traffic == sorted(traffic)


def test_a_worker_is_told_of_a_prefix_at_most_once_a_minute() -> None:
    made = RecentCopies()
    made.add(WorkerRank(1), 7, now=0)
    made.add(WorkerRank(2), 7, now=30)
    assert [made.sent(7, now=59)(WorkerRank(n)) for n in (1, 2, 3)] == [True, True, False]
    assert not made.sent(8, now=59)(WorkerRank(1))
    assert [made.sent(7, now=AGAIN_SECONDS)(WorkerRank(n)) for n in (1, 2)] == [False, True]
    made.add(WorkerRank(1), 7, now=AGAIN_SECONDS)
    made.add(WorkerRank(3), 7, now=1.5 * AGAIN_SECONDS)
    assert [made.sent(7, now=1.5 * AGAIN_SECONDS)(WorkerRank(n)) for n in (1, 2, 3)] == [True, False, True]


class Party:
    """Workers that hold what they are sent, and requests that begin alike."""

    def __init__(self, stack: AsyncExitStack, side: RouterSide, workers: list[ScriptedWorker]) -> None:
        self._stack = stack
        self.side = side
        self.workers = workers
        self.asked: list[Asked] = []

    async def ask(self, **routing: Any) -> None:
        tail = 10_000 + 100 * len(self.asked)
        request = PreprocessedRequest(
            token_ids=[*SYSTEM, *range(tail, tail + 2 * BLOCK)],
            stop_conditions=StopConditions(max_tokens=3),
            routing=Routing(**routing) if routing else None,
        )
        asked = Asked(self.side.router, request)
        await asked.start()
        self.asked.append(asked)

    def copies(self) -> list[tuple[int, PreprocessedRequest]]:
        return [
            (at, request)
            for at, worker in enumerate(self.workers)
            for request in worker.requests
            if len(request.token_ids) == SHARED
        ]

    async def end(self) -> None:
        """Answer everybody."""
        for worker in self.workers:
            worker.hold = False
            while not worker.held.empty():
                worker.held.get_nowait().answer()
        for asked in self.asked:
            await asked.done()
            assert asked.error is None
        self.asked.clear()
        await until(lambda: self.side.kv.active == 0)


async def party(stack: AsyncExitStack, count: int, **config: Any) -> Party:
    local = Local()
    workers = [await stack.enter_async_context(ScriptedWorker(local, hold=True)) for _ in range(count)]
    side = await stack.enter_async_context(routing(local, **config))
    await side.settled(count)
    return Party(stack, side, workers)


async def test_the_third_request_that_begins_alike_brings_copies_to_idle_workers() -> None:
    async with AsyncExitStack() as stack:
        here = await party(stack, 8)
        await here.ask()
        await here.ask()
        assert not here.copies()
        holders = {asked.delivery.instance_id for asked in here.asked}
        await here.ask()
        await until(lambda: here.side.router.stats.copies == len(here.copies()) == 3 - len(holders))
        for at, copy in here.copies():
            assert here.workers[at].id not in holders
            assert list(copy.token_ids) == SYSTEM[:SHARED]
            assert copy.stop_conditions.max_tokens == 1
        assert here.side.router.stats.copied_blocks == (3 - len(holders)) * SHARED // BLOCK
        await here.end()
        for worker in here.workers:
            await until(lambda worker=worker: here.side.same_as(worker))


async def test_copies_that_are_not_done_bring_no_further_ones() -> None:
    async with AsyncExitStack() as stack:
        here = await party(stack, 20)
        for asked in range(1, 8):
            await here.ask()
            assert here.side.router.stats.copies < asked
        await until(lambda: len(here.copies()) == here.side.router.stats.copies > 2)
        await here.end()


async def test_a_copy_carries_adapter_and_salt_and_names_the_rank() -> None:
    async with AsyncExitStack() as stack:
        here = await party(stack, 2, card=ModelRuntimeConfig(data_parallel_size=2))
        for _ in range(3):
            await here.ask(lora_name="tuned", cache_salt="mine")
        await until(lambda: here.copies())
        for at, copy in here.copies():
            assert copy.routing
            assert (copy.routing.lora_name, copy.routing.cache_salt) == ("tuned", "mine")
            taken = {
                (asked.delivery.instance_id, asked.delivery.placement.dp_rank)
                for asked in here.asked
                if asked.delivery.placement
            }
            assert (here.workers[at].id, copy.routing.dp_rank) not in taken
        await here.end()


@pytest.mark.parametrize("config", [{"copy_prefixes": False}, {"use_kv_events": False}, {"overlap_weight": 0.0}])
async def test_no_copies_where_they_are_not_wanted_or_nobody_would_know_of_them(config: dict[str, Any]) -> None:
    async with AsyncExitStack() as stack:
        here = await party(stack, 8, **config)
        for _ in range(6):
            await here.ask()
        assert here.side.router.stats.copies == 0
        await here.end()
        assert not here.copies()


async def test_what_is_only_booked_brings_no_copies() -> None:
    async with AsyncExitStack() as stack:
        here = await party(stack, 8)
        reserved = [await here.side.kv.place(PreprocessedRequest(token_ids=[*SYSTEM]), copies=False) for _ in range(6)]
        assert here.side.router.stats.copies == 0
        (await here.side.kv.place(PreprocessedRequest(token_ids=[*SYSTEM]))).release()
        assert here.side.router.stats.copies > 0, "they count among those that share it"
        for placement in reserved:
            placement.release()
        await here.end()


async def test_different_prompts_and_one_conversation_alone_bring_no_copies() -> None:
    async with AsyncExitStack() as stack:
        here = await party(stack, 8)
        for at in range(6):
            await here.ask(cache_salt=str(at))
        await here.end()
        for worker in here.workers:
            worker.hold = False
        for _ in range(6):
            await here.ask()
            await here.end()
        assert here.side.router.stats.copies == 0


async def test_the_choices_of_one_request_are_not_many_that_begin_alike() -> None:
    async with AsyncExitStack() as stack:
        here = await party(stack, 8)
        one = Prepared(PreprocessedRequest(token_ids=SYSTEM, stop_conditions=StopConditions(max_tokens=3)), "")
        for index in range(8):
            here.asked.append(Asked(here.side.router, one.choice(index).request, group="one"))
            await here.asked[-1].start()
        assert here.side.router.stats.copies == 0
        await here.end()
        assert not here.side.kv._active._groups


async def test_prefixes_that_only_begin_alike_are_copied_each_for_itself() -> None:
    async with AsyncExitStack() as stack:
        here = await party(stack, 2)
        for made, system in enumerate((20_000, 30_000), 1):
            tokens = [*range(BLOCK), *range(system, system + 4000)]
            places = []
            for pinned in (here.workers[0].id, None, None):
                places.append(await here.side.kv.place(PreprocessedRequest(token_ids=[*tokens]), pinned=pinned))
                places[-1].first_token()
            assert {place.instance_id for place in places} == {here.workers[0].id}
            assert here.side.router.stats.copies == made
            for place in places:
                place.release()
            (await here.workers[1].held.get()).answer()
            await until(lambda: here.side.kv.active == 0)


async def test_a_worker_that_keeps_nothing_is_not_asked_again_and_again() -> None:
    async with AsyncExitStack() as stack:
        here = await party(stack, 6)
        for worker in here.workers:
            worker.compute = lambda request: None  # type: ignore[method-assign]
        for _ in range(5):
            for worker in here.workers:
                worker.hold = True
            for _ in range(4):
                await here.ask()
            await here.end()
        assert here.copies()
        assert all(sum(at == place for place, _ in here.copies()) <= 1 for at in range(6))


async def test_a_copy_that_fails_leaves_no_trace() -> None:
    async with AsyncExitStack() as stack:
        here = await party(stack, 8)
        for _ in range(3):
            await here.ask()
        await until(lambda: here.copies())
        for at, _ in here.copies():
            here.workers[at].held.get_nowait().outlet.fail(Unknown("no memory"))
        await here.end()
        loads = here.side.kv.loads()
        assert not any(load.decode_blocks or load.prefill_tokens for load in loads)
        assert all(asked.error is None for asked in here.asked)
