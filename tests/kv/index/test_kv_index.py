from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.kv.hashing import prompt_hashes, sequence_hashes
from dynamo.kv.index.index import Index
from dynamo.kv.index.overlaps import Overlap
from dynamo.kv.messages import (
    KV_WIRE_VERSION,
    Cleared,
    KvChange,
    KvSnapshot,
    Removed,
    RouterEvent,
    Stored,
    Tier,
    TierSnapshot,
    WorkerRank,
)
from dynamo.protocols.errors import InvalidArgument
from support.kv_naive import NaiveIndex

A, B = WorkerRank(1), WorkerRank(2)
CHAIN = sequence_hashes([1, 2, 3, 4, 5, 6])


def stored(worker: WorkerRank, blocks: list[int], parent: int | None = None, tier: Tier = Tier.Device) -> RouterEvent:
    return _event(worker, Stored(blocks, parent), tier)


def removed(worker: WorkerRank, blocks: list[int], tier: Tier = Tier.Device) -> RouterEvent:
    return _event(worker, Removed(blocks), tier)


def _event(worker: WorkerRank, data: KvChange, tier: Tier = Tier.Device) -> RouterEvent:
    return RouterEvent(worker_id=worker.worker_id, dp_rank=worker.dp_rank, event_id=0, data=data, tier=tier)


def snapshot_of(worker: WorkerRank, blocks: list[int], parents: list[int | None]) -> KvSnapshot:
    part = TierSnapshot(tier=Tier.Device, sequence_hashes=blocks, parents=parents)
    return KvSnapshot(version=KV_WIRE_VERSION, worker_id=worker.worker_id, dp_rank=worker.dp_rank, tiers=[part])


def test_a_worker_matches_as_deep_as_it_holds_the_prompt() -> None:
    index = Index()
    assert index.apply(stored(A, CHAIN[:3])) == 3
    index.apply(stored(B, CHAIN[:1]))
    assert index.match(CHAIN).by_worker() == {A: Overlap(3), B: Overlap(1)}
    assert index.match([]).by_worker() == {}
    assert index.match(sequence_hashes([2, 3])).by_worker() == {}


def test_ranks_of_one_worker_are_kept_apart() -> None:
    index = Index()
    index.apply(stored(WorkerRank(1, 0), CHAIN[:1]))
    index.apply(stored(WorkerRank(1, 1), CHAIN[:2]))
    assert index.match(CHAIN).by_worker() == {WorkerRank(1, 0): Overlap(1), WorkerRank(1, 1): Overlap(2)}
    index.apply(_event(WorkerRank(1, 1), Cleared()))
    assert index.match(CHAIN).by_worker() == {WorkerRank(1, 0): Overlap(1)}


def test_a_block_evicted_in_the_middle_ends_the_match_there_until_it_returns() -> None:
    index = Index()
    index.apply(stored(A, CHAIN))
    index.apply(removed(A, [CHAIN[2]]))
    assert index.match(CHAIN).by_worker() == {A: Overlap(2)}
    assert index.apply(stored(A, [CHAIN[2]], parent=CHAIN[1])) == 1
    assert index.match(CHAIN).by_worker() == {A: Overlap(6)}


def test_a_chain_goes_on_after_a_gap() -> None:
    index = Index()
    index.apply(stored(A, CHAIN[:4]))
    index.apply(removed(A, [CHAIN[1]]))
    index.apply(stored(A, CHAIN[4:], parent=CHAIN[3]))
    assert index.match(CHAIN).by_worker() == {A: Overlap(1)}
    index.apply(stored(A, [CHAIN[1]], parent=CHAIN[0]))
    assert index.match(CHAIN).by_worker() == {A: Overlap(6)}


def test_blocks_under_a_parent_that_is_not_held_count_once_it_is() -> None:
    index = Index()
    index.apply(stored(A, CHAIN[3:], parent=CHAIN[2]))
    assert index.match(CHAIN).by_worker() == {}
    index.apply(stored(A, CHAIN[:3]))
    assert index.match(CHAIN).by_worker() == {A: Overlap(6)}


def test_an_event_that_names_a_block_twice_is_refused_and_changes_nothing() -> None:
    index = Index()
    index.apply(stored(A, CHAIN[:1]))
    for worker in (A, B):
        with pytest.raises(InvalidArgument, match="the same block twice"):
            index.apply(stored(worker, [CHAIN[1], CHAIN[2], CHAIN[1]], parent=CHAIN[0]))
    assert index.match(CHAIN).by_worker() == {A: Overlap(1)}
    assert len(index) == 1
    assert index.workers == [A]


def test_what_changes_nothing_is_not_counted() -> None:
    index = Index()
    index.apply(stored(A, CHAIN[:2]))
    assert index.apply(stored(A, CHAIN[:3])) == 1
    assert index.apply(removed(A, [*CHAIN[:3], 99])) == 3
    assert index.match(CHAIN).by_worker() == {}
    assert len(index) == 0


def test_an_event_without_blocks_changes_nothing() -> None:
    index = Index()
    assert index.apply(stored(A, [])) == 0
    assert index.apply(removed(A, [])) == 0
    assert index.apply(_event(A, Cleared())) == 0
    assert index.workers == []


def test_an_event_stays_as_it_was_when_its_blocks_are_followed_by_others() -> None:
    index = Index()
    event = stored(A, CHAIN[:2])
    index.apply(event)
    index.apply(stored(A, CHAIN[2:], parent=CHAIN[1]))
    assert event == stored(A, CHAIN[:2])


def test_slower_tiers_go_on_where_the_faster_ones_end() -> None:
    index = Index()
    index.apply(stored(A, CHAIN[:2]))
    index.apply(stored(A, CHAIN[1:4], parent=CHAIN[0], tier=Tier.Host))
    index.apply(stored(A, CHAIN[4:5], parent=CHAIN[3], tier=Tier.Disk))
    index.apply(stored(A, CHAIN[5:], parent=CHAIN[4], tier=Tier.External))
    index.apply(stored(B, CHAIN[:1], tier=Tier.Disk))
    assert index.match(CHAIN).by_worker() == {A: Overlap(2, 2, 1, 1), B: Overlap(0, 0, 1, 0)}
    index.apply(removed(A, [CHAIN[1], CHAIN[0]]))
    assert index.match(CHAIN).by_worker() == {B: Overlap(0, 0, 1, 0)}
    index.apply(stored(A, CHAIN[:1], tier=Tier.Host))
    assert index.match(CHAIN).by_worker()[A] == Overlap(0, 4, 1, 1)


def test_adapters_and_tenants_do_not_see_each_others_blocks() -> None:
    tokens = list(range(8))
    index = Index()
    index.apply(stored(A, prompt_hashes(tokens, 4, lora_name="x")))
    for lora, salt, depth in [("x", None, 2), (None, None, 0), (None, "x", 0), ("x", "x", 0)]:
        chain = prompt_hashes(tokens, 4, lora_name=lora, cache_salt=salt)
        assert index.match(chain).by_worker().get(A, Overlap()).device == depth


def test_slots_are_used_again_and_carry_nothing_over() -> None:
    index = Index()
    for worker_id in range(1000):
        index.apply(stored(WorkerRank(worker_id), CHAIN[:2]))
        assert index.match(CHAIN).by_worker() == {WorkerRank(worker_id): Overlap(2)}
        index.remove_worker(WorkerRank(worker_id))
    assert index.workers == []
    assert len(index) == 0
    assert len(index._slots.workers) == 1


@pytest.mark.parametrize(
    ("blocks", "parents", "message"),
    [([1], [None, 1], "columns of different length"), ([1, 2], [None, 2], "a block is its own parent")],
)
def test_a_malformed_snapshot_is_refused_and_changes_nothing(
    blocks: list[int], parents: list[int | None], message: str
) -> None:
    index = Index()
    index.apply(stored(A, CHAIN[:1]))
    with pytest.raises(InvalidArgument, match=message):
        index.replace(snapshot_of(A, blocks, parents))
    assert index.match(CHAIN).by_worker() == {A: Overlap(1)}


Row = tuple[int, int | None]
SMALL = st.integers(1, 5)
ROWS = st.lists(st.tuples(SMALL, st.none() | SMALL), max_size=8)
CHANGES = st.lists(st.tuples(st.integers(0, 2), ROWS), max_size=6)


@given(CHANGES)
def test_whatever_workers_say_of_parents_all_is_forgotten_with_them(changes: list[tuple[int, list[Row]]]) -> None:
    """Rows of small numbers are chains that loop, join and contradict each other, as no honest hashes do."""
    index = Index()
    for worker_id, rows in changes:
        worker, other = WorkerRank(worker_id), WorkerRank((worker_id + 1) % 3)
        rows = [row for row in rows if row[0] != row[1]]
        blocks, parents = [row[0] for row in rows], [row[1] for row in rows]
        index.replace(snapshot_of(worker, blocks, parents))
        index.apply(removed(worker, blocks[2:4]))
        index.apply(stored(worker, list(dict.fromkeys(blocks)), parents[0] if parents else None))
        index.apply(removed(other, blocks[::-1]))
        index.match(blocks)
        for known in index.workers:
            held = [block for part in index.snapshot(known) for block in part.sequence_hashes]
            assert len(held) == len({*held}) == index.blocks(known)
    for worker in index.workers:
        index.remove_worker(worker)
    assert len(index) == 0
    assert not index._device._all


def test_blocks_that_call_each_other_their_parent_are_forgotten_like_others() -> None:
    index = Index()
    index.apply(stored(B, CHAIN[:2]))
    index.replace(snapshot_of(A, [35, 36, 37, 38, 39, 31, 32, 31], [36, 35, 38, 37, 38, 32, 31, 32]))
    assert index.clear(A) == 7
    assert len(index) == 2
    assert index.match(CHAIN).by_worker() == {B: Overlap(2)}


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
            event = stored(worker, chain)
        elif rng.random() < 0.5:
            event = removed(worker, chain[rng.randrange(len(chain)) :])
        else:
            event = removed(worker, rng.sample(chain, min(3, len(chain))))
        assert index.apply(event) == model.apply(event)
        for prompt in prompts:
            chain = sequence_hashes(prompt)
            assert index.match(chain).by_worker() == model.match(chain)
