from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from kv_naive import NaiveIndex

from dynamo.protocols.errors import InvalidArgument
from dynamo.protocols.kv import Cleared, Removed, RouterEvent, Snapshot, Stored, Tier, TierSnapshot
from dynamo.router.kv.hashing import local_hashes, salt_seed, sequence_hashes
from dynamo.router.kv.index import Applied, Index, Overlap, Rejected
from dynamo.router.kv.slots import Worker

A, B = Worker(1), Worker(2)


def stored(
    worker: Worker, names: list[int], tokens: list[int], parent: int | None = None, tier: Tier = Tier.Device
) -> RouterEvent:
    return _event(worker, Stored(names, tokens, parent), tier)


def removed(worker: Worker, names: list[int], tier: Tier = Tier.Device) -> RouterEvent:
    return _event(worker, Removed(names), tier)


def _event(worker: Worker, data: Stored | Removed | Cleared, tier: Tier = Tier.Device) -> RouterEvent:
    return RouterEvent(worker_id=worker.worker_id, dp_rank=worker.dp_rank, event_id=0, data=data, tier=tier)


CHAIN = sequence_hashes([1, 2, 3, 4, 5, 6])


def test_a_worker_matches_as_deep_as_it_holds_the_prompt() -> None:
    index = Index()
    assert index.apply(stored(A, [11, 12, 13], [1, 2, 3])) == Applied(3)
    index.apply(stored(B, [21], [1]))
    assert index.match(CHAIN) == {A: Overlap(3), B: Overlap(1)}
    assert index.match([]) == {}
    assert index.match(sequence_hashes([2, 3])) == {}


def test_ranks_of_one_worker_are_kept_apart() -> None:
    index = Index()
    index.apply(stored(Worker(1, 0), [11], [1]))
    index.apply(stored(Worker(1, 1), [11, 12], [1, 2]))
    assert index.match(CHAIN) == {Worker(1, 0): Overlap(1), Worker(1, 1): Overlap(2)}
    index.apply(_event(Worker(1, 1), Cleared()))
    assert index.match(CHAIN) == {Worker(1, 0): Overlap(1)}


def test_a_block_evicted_in_the_middle_ends_the_match_there_until_it_returns() -> None:
    index = Index()
    index.apply(stored(A, [11, 12, 13, 14, 15, 16], [1, 2, 3, 4, 5, 6]))
    index.apply(removed(A, [13]))
    assert index.match(CHAIN) == {A: Overlap(2)}
    assert index.apply(stored(A, [13], [3], parent=12)) == Applied(1)
    assert index.match(CHAIN) == {A: Overlap(6)}


def test_a_chain_goes_on_after_a_gap() -> None:
    index = Index()
    index.apply(stored(A, [11, 12, 13, 14], [1, 2, 3, 4]))
    index.apply(removed(A, [12]))
    index.apply(stored(A, [15, 16], [5, 6], parent=14))
    assert index.match(CHAIN) == {A: Overlap(1)}
    index.apply(stored(A, [12], [2], parent=11))
    assert index.match(CHAIN) == {A: Overlap(6)}


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (stored(A, [12], [2], parent=99), "parent block 99 is unknown"),
        (stored(B, [12], [2], parent=11), "parent block 11 is unknown"),
        (stored(A, [12, 11], [2, 3], parent=11), "block 11 is stored as its own parent"),
    ],
)
def test_an_event_that_does_not_fit_is_rejected_and_changes_nothing(event: RouterEvent, reason: str) -> None:
    index = Index()
    index.apply(stored(A, [11], [1]))
    assert index.apply(event) == Rejected(reason)
    assert index.match(CHAIN) == {A: Overlap(1)}
    assert len(index) == 1
    assert index.workers == [A]


def test_storing_twice_is_reported_and_needs_one_removal() -> None:
    index = Index()
    index.apply(stored(A, [11, 12], [1, 2]))
    assert index.apply(stored(A, [11, 12, 13], [1, 2, 3])) == Applied(1, repeated=2)
    assert index.apply(removed(A, [11, 12, 13, 99])) == Applied(3, unknown=1)
    assert index.match(CHAIN) == {}
    assert len(index) == 0


def test_a_block_with_two_names_is_held_until_both_are_removed() -> None:
    index = Index()
    index.apply(stored(A, [11], [1]))
    index.apply(stored(A, [91], [1]))
    index.apply(removed(A, [11]))
    assert index.match(CHAIN) == {A: Overlap(1)}
    index.apply(removed(A, [91]))
    assert index.match(CHAIN) == {}


def test_a_name_given_to_other_tokens_leaves_the_old_block() -> None:
    index = Index()
    index.apply(stored(A, [11, 12], [1, 2]))
    index.apply(stored(A, [12], [7], parent=11))
    assert index.match(CHAIN) == {A: Overlap(1)}
    assert index.match(sequence_hashes([1, 7])) == {A: Overlap(2)}


def test_a_name_given_twice_in_one_event_means_the_later_block() -> None:
    index = Index()
    assert index.apply(stored(A, [11, 12, 12], [1, 2, 3])) == Applied(3)
    assert index.match(CHAIN) == {A: Overlap(1)}
    assert index.blocks(A) == 2


def test_an_event_without_blocks_changes_nothing() -> None:
    index = Index()
    assert index.apply(stored(A, [], [])) == Applied()
    assert index.apply(removed(A, [])) == Applied()
    assert index.apply(_event(A, Cleared())) == Applied()
    assert index.workers == []


def test_slower_tiers_go_on_where_the_faster_ones_end() -> None:
    index = Index()
    index.apply(stored(A, [11, 12], [1, 2]))
    index.apply(stored(A, [12, 13, 14], [2, 3, 4], parent=11, tier=Tier.Host))
    index.apply(stored(A, [15], [5], parent=14, tier=Tier.Disk))
    index.apply(stored(A, [16], [6], parent=15, tier=Tier.External))
    index.apply(stored(B, [11], [1], tier=Tier.Disk))
    assert index.match(CHAIN) == {A: Overlap(2, 2, 1, 1), B: Overlap(0, 0, 1, 0)}
    index.apply(removed(A, [12, 11]))
    assert index.match(CHAIN) == {B: Overlap(0, 0, 1, 0)}
    index.apply(stored(A, [11], [1], tier=Tier.Host))
    assert index.match(CHAIN)[A] == Overlap(0, 4, 1, 1)


def test_adapters_and_tenants_do_not_see_each_others_blocks() -> None:
    tokens = list(range(8))
    index = Index()
    index.apply(stored(A, [1, 2], local_hashes(tokens, 4, salt_seed(lora_name="x"))))
    for lora, salt, depth in [("x", None, 2), (None, None, 0), (None, "x", 0), ("x", "x", 0)]:
        chain = sequence_hashes(local_hashes(tokens, 4, salt_seed(lora, salt)))
        assert index.match(chain).get(A, Overlap()).device == depth


def test_slots_are_used_again_and_carry_nothing_over() -> None:
    index = Index()
    for worker_id in range(1000):
        index.apply(stored(Worker(worker_id), [11, 12], [1, 2]))
        assert index.match(CHAIN) == {Worker(worker_id): Overlap(2)}
        index.remove_worker(Worker(worker_id))
    assert index.workers == []
    assert len(index) == 0
    assert len(index._slots.workers) == 1


@pytest.mark.parametrize(
    ("sequences", "parents", "message"),
    [([1], [None, 1], "columns of different length"), ([1, 2], [None, 2], "a block is its own parent")],
)
def test_a_malformed_snapshot_is_refused_and_changes_nothing(
    sequences: list[int], parents: list[int | None], message: str
) -> None:
    index = Index()
    index.apply(stored(A, [11], [1]))
    part = TierSnapshot(tier=Tier.Device, block_hashes=[1, 2], sequence_hashes=sequences, parents=parents)
    with pytest.raises(InvalidArgument, match=message):
        index.replace(Snapshot(worker_id=1, tiers=[part]))
    assert index.match(CHAIN) == {A: Overlap(1)}


NAMES = st.integers(0, 25)
WORKERS = st.sampled_from([Worker(1), Worker(1, 1), Worker(2), Worker(7)])
TIERS = st.sampled_from([Tier.Device, Tier.Device, Tier.Device, Tier.Host, Tier.Disk])


class IndexAgainstNaiveModel(RuleBasedStateMachine):
    """Few names and fewer tokens, so that gaps, aliases, forks and returns happen all the time."""

    @initialize()
    def begin(self) -> None:
        self.index = Index()
        self.model = NaiveIndex()
        self.rng = random.Random(5)

    @rule(
        worker=WORKERS,
        tier=TIERS,
        parent=st.none() | NAMES,
        names=st.lists(NAMES, min_size=1, max_size=6),
        tokens=st.lists(st.integers(1, 2), min_size=6, max_size=6),
    )
    def store(self, worker: Worker, tier: Tier, parent: int | None, names: list[int], tokens: list[int]) -> None:
        self._apply(stored(worker, names, tokens[: len(names)], parent, tier))

    @rule(worker=WORKERS, length=st.integers(1, 8))
    def store_a_long_chain(self, worker: Worker, length: int) -> None:
        self._apply(stored(worker, list(range(length)), [1] * length))

    @rule(worker=WORKERS, tier=TIERS, names=st.lists(NAMES, max_size=5))
    def remove(self, worker: Worker, tier: Tier, names: list[int]) -> None:
        self._apply(removed(worker, names, tier))

    @rule(worker=WORKERS)
    def clear(self, worker: Worker) -> None:
        self._apply(_event(worker, Cleared()))

    @rule(worker=WORKERS)
    def remove_worker(self, worker: Worker) -> None:
        self.index.remove_worker(worker)
        self.model.held.pop(worker, None)

    @rule(worker=WORKERS)
    def restart_from_snapshots(self, worker: Worker) -> None:
        """A second router that saw nothing but snapshots knows the same."""
        fresh = Index()
        for known in self.index.workers:
            tiers = self.index.snapshot(known)
            fresh.replace(Snapshot(worker_id=known.worker_id, dp_rank=known.dp_rank, tiers=tiers))
        self.index = fresh

    @rule(worker=WORKERS)
    def replace_by_own_snapshot(self, worker: Worker) -> None:
        tiers = self.index.snapshot(worker)
        self.index.replace(Snapshot(worker_id=worker.worker_id, dp_rank=worker.dp_rank, tiers=tiers))
        self.model.held.setdefault(worker, {tier: {} for tier in Tier})

    @invariant()
    def same_answers(self) -> None:
        prompts = [[1] * 9, [2, 1, 2, 1, 2, 1], [self.rng.choice((1, 2)) for _ in range(7)]]
        for worker, tiers in list(self.model.held.items())[:2]:
            assert self.index.blocks(worker) == len(tiers[Tier.Device])
        for prompt in prompts:
            chain = sequence_hashes(prompt)
            assert self.index.match(chain) == self.model.match(chain)

    @invariant()
    def nothing_is_kept_that_nobody_holds(self) -> None:
        held = {seq for tiers in self.model.held.values() for names in tiers.values() for seq in names.values()}
        assert len(self.index) == len(held)
        assert len(self.index._slots.workers) <= 4
        for worker, tiers in self.model.held.items():
            held_here = set(tiers[Tier.Device].values())
            holes = any(
                parent is not None and parent not in held_here
                for parent in (self.index._blocks.parents[sequence] for sequence in held_here)
            )
            bit = 1 << (self.index._slots.get(worker) or 0)
            assert bool(self.index._holed & bit) == holes or self.index._slots.get(worker) is None

    def _apply(self, event: RouterEvent) -> None:
        assert isinstance(self.index.apply(event), Applied) == self.model.apply(event)


IndexAgainstNaiveModel.TestCase.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
TestIndexAgainstNaiveModel = IndexAgainstNaiveModel.TestCase


@pytest.mark.parametrize("seed", range(20))
def test_long_chains_with_random_eviction_match_exactly(seed: int) -> None:
    rng = random.Random(seed)
    index, model = Index(), NaiveIndex()
    prompts = [[rng.choice((1, 2)) if at % 16 == 0 else 7 for at in range(100)] for _ in range(4)]
    for _ in range(150):
        worker = Worker(rng.randrange(12))
        prompt = rng.choice(prompts)[: rng.randrange(1, 100)]
        chain = sequence_hashes(prompt)
        if rng.random() < 0.5:
            event = stored(worker, chain, prompt)
        elif rng.random() < 0.5:
            event = removed(worker, chain[rng.randrange(len(chain)) :])
        else:
            event = removed(worker, rng.sample(chain, min(3, len(chain))))
        assert isinstance(index.apply(event), Applied) == model.apply(event)
        for prompt in prompts:
            chain = sequence_hashes(prompt)
            assert index.match(chain) == model.match(chain)
