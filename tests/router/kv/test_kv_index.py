from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.kv.hashing import local_hashes, salt_seed, sequence_hashes
from dynamo.protocols.errors import InvalidArgument
from dynamo.protocols.kv import Cleared, KvSnapshot, Removed, RouterEvent, Stored, Tier, TierSnapshot
from dynamo.router.kv.index.index import Applied, Index, Rejected
from dynamo.router.kv.index.overlaps import Overlap
from dynamo.router.kv.slots import WorkerRank
from support.kv_naive import NaiveIndex

A, B = WorkerRank(1), WorkerRank(2)


def stored(
    worker: WorkerRank, names: list[int], tokens: list[int], parent: int | None = None, tier: Tier = Tier.Device
) -> RouterEvent:
    return _event(worker, Stored(names, tokens, parent), tier)


def removed(worker: WorkerRank, names: list[int], tier: Tier = Tier.Device) -> RouterEvent:
    return _event(worker, Removed(names), tier)


def _event(worker: WorkerRank, data: Stored | Removed | Cleared, tier: Tier = Tier.Device) -> RouterEvent:
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
    index.apply(stored(WorkerRank(1, 0), [11], [1]))
    index.apply(stored(WorkerRank(1, 1), [11, 12], [1, 2]))
    assert index.match(CHAIN) == {WorkerRank(1, 0): Overlap(1), WorkerRank(1, 1): Overlap(2)}
    index.apply(_event(WorkerRank(1, 1), Cleared()))
    assert index.match(CHAIN) == {WorkerRank(1, 0): Overlap(1)}


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


def test_columns_of_different_length_are_rejected() -> None:
    index = Index()
    assert index.apply(stored(A, [11, 12], [1])) == Rejected("2 block hashes, 1 of tokens")
    assert index.workers == []


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
        index.apply(stored(WorkerRank(worker_id), [11, 12], [1, 2]))
        assert index.match(CHAIN) == {WorkerRank(worker_id): Overlap(2)}
        index.remove_worker(WorkerRank(worker_id))
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
        index.replace(KvSnapshot(worker_id=1, tiers=[part]))
    assert index.match(CHAIN) == {A: Overlap(1)}


Row = tuple[int, int, int | None]
SMALL = st.integers(1, 3)
ROWS = st.lists(st.tuples(st.integers(1, 30), SMALL, st.none() | SMALL), max_size=8)
CHANGES = st.lists(st.tuples(st.integers(0, 2), ROWS), max_size=6)


@given(CHANGES)
def test_whatever_workers_say_of_parents_all_is_forgotten_with_them(changes: list[tuple[int, list[Row]]]) -> None:
    """Rows of small numbers are chains that loop, join and contradict each other."""
    index = Index()
    for worker_id, rows in changes:
        rows = [row for row in rows if row[1] != row[2]]
        names, blocks, parents = [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]
        tier = TierSnapshot(tier=Tier.Device, block_hashes=names, sequence_hashes=blocks, parents=parents)
        index.replace(KvSnapshot(worker_id=worker_id, tiers=[tier]))
        index.apply(stored(WorkerRank(worker_id), names, blocks, parents[0] if parents else None))
        index.apply(removed(WorkerRank((worker_id + 1) % 3), names[::-1]))
        index.match(blocks)
        for worker in index.workers:
            told = [row for part in index.snapshot(worker) for row in part.block_hashes]
            assert len(told) == len({*told}) == index.blocks(worker)
    for worker in index.workers:
        index.remove_worker(worker)
    assert len(index) == 0
    assert not index._device._all


def test_blocks_that_call_each_other_their_parent_are_forgotten_like_others() -> None:
    index = Index()
    index.apply(stored(B, [11, 12], [1, 2]))
    part = TierSnapshot(
        tier=Tier.Device,
        block_hashes=[45, 46, 47, 48, 49, 41, 42, 43],
        sequence_hashes=[35, 36, 37, 38, 39, 31, 32, 31],
        parents=[36, 35, 38, 37, 38, 32, 31, 32],
    )
    index.replace(KvSnapshot(worker_id=1, tiers=[part]))
    assert index.clear(A) == 8
    assert len(index) == 2
    assert index.match(CHAIN) == {B: Overlap(2)}


@pytest.mark.parametrize("seed", range(20))
def test_long_chains_with_random_eviction_match_exactly(seed: int) -> None:
    rng = random.Random(seed)
    index, model = Index(), NaiveIndex()
    prompts = [[rng.choice((1, 2)) if at % 16 == 0 else 7 for at in range(100)] for _ in range(4)]
    for _ in range(150):
        worker = WorkerRank(rng.randrange(12))
        prompt = rng.choice(prompts)[: rng.randrange(1, 100)]
        chain = sequence_hashes(prompt)
        if rng.random() < 0.5:
            event = stored(worker, chain, prompt)
        elif rng.random() < 0.5:
            event = removed(worker, chain[rng.randrange(len(chain)) :])
        else:
            event = removed(worker, rng.sample(chain, min(3, len(chain))))
        assert index.apply(event) == model.apply(event)
        for prompt in prompts:
            chain = sequence_hashes(prompt)
            assert index.match(chain) == model.match(chain)
