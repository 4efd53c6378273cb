from __future__ import annotations

import math
from collections import Counter
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from dynamo.engines.mocker import Iteration, MockerArgs, Ranks
from dynamo.engines.mocker.scheduler import Scheduler
from dynamo.engines.mocker.tiers import MockTiers
from dynamo.kv.messages import Tier
from dynamo.protocols.errors import InvalidArgument
from engines.mocker.mocker_world import Replica, TierReplica, answer_to

some = settings(max_examples=300, deadline=None)

ARGS = st.builds(
    MockerArgs,
    block_size=st.integers(1, 4),
    num_gpu_blocks=st.integers(3, 20),
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.integers(1, 16),
    enable_prefix_caching=st.booleans() | st.just(True),
    enable_chunked_prefill=st.booleans(),
    async_scheduling=st.booleans(),
    preemption_mode=st.sampled_from(["lifo", "fifo"]),
    watermark=st.sampled_from([0.0, 0.01, 0.3]),
    dp_size=st.integers(1, 2),
    num_g2_blocks=st.sampled_from([0, 0, 1, 3, 8, 100]),
    bandwidth_g1_to_g2_gbps=st.sampled_from([0.0, 14.0, 1e-2]),
    bandwidth_g2_to_g1_gbps=st.sampled_from([0.0, 14.0, 1.0, 1e-3]),
    num_g3_blocks=st.sampled_from([0, 1, 4, 100]),
    bandwidth_g2_to_g3_gbps=st.sampled_from([0.0, 7.0, 1e-2]),
    bandwidth_g3_to_g2_gbps=st.sampled_from([0.0, 7.0, 1e-2]),
)
# Few different tokens, so that prompts share prefixes.
ADD = st.tuples(st.just("add"), st.lists(st.integers(1, 2), min_size=1, max_size=12), st.integers(1, 14))
STEP = st.tuples(st.just("step"))
CANCEL = st.tuples(st.just("cancel"), st.integers(0, 20))
CLEAR = st.tuples(st.just("clear"))
START = st.lists(ADD, max_size=8)
WORK = st.builds(list.__add__, START, st.lists(ADD | STEP | STEP | STEP | CANCEL | CLEAR, max_size=40))


class World:
    """Ranks under random work, with all that ever came out of them."""

    def __init__(self, args: MockerArgs, *, folding: bool) -> None:
        self.args = args
        self.ranks = Ranks(args)
        self.folding = folding
        self.now = 0.0
        self.prompts: dict[int, tuple[list[int], int]] = {}
        self.tokens: dict[int, list[int]] = {}
        self.finished: list[Any] = []
        self.events: list[Any] = []
        self.replicas = [Replica() for _ in self.ranks.schedulers]
        self.tier_events: list[Any] = []
        self.below = [tier_replicas(args) for _ in self.ranks.schedulers]
        self.ranks.record_tier_events()

    def do(self, action: tuple[Any, ...]) -> None:
        match action:
            case ("add", prompt, length):
                request_id = len(self.prompts)
                self.prompts[request_id] = (prompt, length)
                try:
                    self.ranks.add(request_id, prompt, answer_to(prompt, length, self.args.context_limit))
                except InvalidArgument:
                    assert len(prompt) >= self.args.context_limit
                else:
                    self.tokens[request_id] = []
            case ("step",):
                self.step()
            case ("cancel", request_id):
                if self.ranks.cancel(request_id):
                    del self.tokens[request_id]
            case ("clear",):
                self.hear_of_tiers(self.ranks.take_tier_events())
                if self.ranks.clear_cache():
                    self.below = [tier_replicas(self.args) for _ in self.ranks.schedulers]
                self.hear(self.ranks.take_events())

    def step(self) -> Iteration:
        iteration = self.ranks.step(self.now, math.inf if self.folding else None)
        assert iteration.ends >= self.now
        self.now = iteration.ends
        for request_id, ids in iteration.take_tokens():
            self.tokens[request_id] += ids
        self.finished += iteration.finished
        self.hear_of_tiers(iteration.tier_events)
        self.hear(iteration.events)
        return iteration

    def hear_of_tiers(self, events: list[tuple[int, list[Any]]]) -> None:
        self.tier_events += [(rank, event) for rank, of_rank in events for event in of_rank]
        for rank, of_rank in events:
            for tier, change in of_rank:
                self.below[rank][tier].apply(change)

    def hear(self, events: list[tuple[int, list[Any]]]) -> None:
        self.events += [(rank, event) for rank, of_rank in events for event in of_rank]
        for rank, of_rank in events:
            self.replicas[rank].apply(of_rank)

    def finish(self) -> None:
        for _ in range(5000):
            if not self.ranks.busy:
                return
            self.step()
            self.check()
        raise AssertionError("requests are left that never finish")

    def check(self) -> None:
        for scheduler, replica, below in zip(self.ranks.schedulers, self.replicas, self.below, strict=True):
            check(scheduler)
            assert replica.hashes == scheduler.pool.cached_hashes()
            if scheduler.tiers is not None:
                assert scheduler.tiers._parents.keys() == replica.hashes
                assert held_below(scheduler.tiers) == {tier: each.hashes for tier, each in below.items()}


def tier_replicas(args: MockerArgs) -> dict[Tier, TierReplica]:
    return {Tier.Host: TierReplica(args.num_g2_blocks), Tier.Disk: TierReplica(args.num_g3_blocks)}


def held_below(tiers: MockTiers) -> dict[Tier, set[int]]:
    return {Tier.Host: set(tiers._host._segments), Tier.Disk: set(tiers._disk._segments)}


def check(scheduler: Scheduler) -> None:
    pool, size = scheduler.pool, scheduler.args.block_size
    pool.check()
    assert pool.used + pool.free == pool.total
    restoring = scheduler.tiers.waiting() if scheduler.tiers else []
    held = Counter(block for sequence in (*scheduler.running, *restoring) for block in sequence.blocks)
    assert [held[block] for block in range(len(pool._holders))] == pool._holders
    assert all(block < len(pool._holders) for block in held)
    assert len(scheduler.running) <= scheduler.args.max_num_seqs
    for sequence in scheduler.running:
        assert len(sequence.blocks) == -(-sequence.computed // size)
    assert all(not sequence.blocks and not sequence.computed for sequence in scheduler.waiting)


@some
@given(ARGS, WORK, st.booleans())
def test_blocks_are_never_leaked_and_events_tell_the_cache(
    args: MockerArgs, work: list[tuple[Any, ...]], folding: bool
) -> None:
    world = World(args, folding=folding)
    for action in work:
        world.do(action)
        world.check()
    world.finish()
    assert all(scheduler.pool.used == 0 for scheduler in world.ranks.schedulers)


@some
@given(ARGS, WORK, st.booleans())
def test_every_token_is_produced_exactly_once_whatever_is_preempted(
    args: MockerArgs, work: list[tuple[Any, ...]], folding: bool
) -> None:
    world = World(args, folding=folding)
    for action in work:
        world.do(action)
    world.finish()
    finished = {done.request_id: done for done in world.finished}
    for request_id, tokens in world.tokens.items():
        prompt, length = world.prompts[request_id]
        expected = min(length, args.context_limit - len(prompt))
        assert tokens == answer_to(prompt, length).take(expected)
        assert finished[request_id].completion_tokens == expected
        assert finished[request_id].cached_tokens < len(prompt)


@some
@given(ARGS, WORK)
def test_the_same_work_gives_the_same_history(args: MockerArgs, work: list[tuple[Any, ...]]) -> None:
    first, second = World(args, folding=True), World(args, folding=True)
    for world in (first, second):
        for action in work:
            world.do(action)
        world.finish()
    assert (first.tokens, first.finished, first.events, first.tier_events, first.now) == (
        second.tokens,
        second.finished,
        second.events,
        second.tier_events,
        second.now,
    )


def state(scheduler: Scheduler) -> tuple[Any, ...]:
    pool = scheduler.pool
    return (
        list(pool.idle._plain),
        pool._holders,
        pool._hash_of,
        pool._found,
        pool._copies,
        [(s.request_id, s.tokens, s.computed, s.blocks, s.hashes, s.cached_tokens) for s in scheduler.running],
        [(s.request_id, s.tokens) for s in scheduler.waiting],
        scheduler.tiers and [list(each._segments) for each in (scheduler.tiers._host, scheduler.tiers._disk)],
        scheduler.tiers and [sequence.request_id for sequence in scheduler.tiers.waiting()],
        scheduler.load(),
    )


# Two sequences that share blocks read more tokens than the cache holds.
@example(
    MockerArgs(block_size=3, num_gpu_blocks=10, max_num_seqs=2, max_num_batched_tokens=2),
    [("add", [1] * 2, 1), ("add", [1] * 9, 10), ("add", [1] * 4, 10)],
)
@some
@given(ARGS, WORK)
def test_folding_iterations_changes_nothing_but_the_number_of_calls(
    args: MockerArgs, work: list[tuple[Any, ...]]
) -> None:
    folded, single = World(args, folding=True), World(args, folding=False)

    def step_both() -> None:
        for _ in range(folded.step().steps):
            single.step()

    def same() -> None:
        assert [state(s) for s in folded.ranks.schedulers] == [state(s) for s in single.ranks.schedulers]
        assert (folded.tokens, folded.finished) == (single.tokens, single.finished)
        for rank in range(args.dp_size):
            assert [e for r, e in folded.events if r == rank] == [e for r, e in single.events if r == rank]
            assert [e for r, e in folded.tier_events if r == rank] == [e for r, e in single.tier_events if r == rank]
        assert math.isclose(folded.now, single.now)

    for action in work:
        if action == ("step",):
            step_both()
        else:
            folded.do(action)
            single.do(action)
        same()
    while folded.ranks.busy:
        step_both()
        same()
