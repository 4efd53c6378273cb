"""The largest cached prefixes: what is found, as a tree, and that a scan survives changes."""

from __future__ import annotations

import pytest

from dynamo.kv.hashing import sequence_hashes
from dynamo.kv.index import prefixes
from dynamo.kv.index.approximate import ApproximateIndex
from dynamo.kv.index.index import Index
from dynamo.kv.index.prefixes import CachedPrefix, PrefixScan
from dynamo.kv.messages import RouterEvent, Stored, Tier, WorkerRank

A, B, C = WorkerRank(1), WorkerRank(2), WorkerRank(3)
SYSTEM = [1, 2, 3, 4]
HELLO, BYE = sequence_hashes([*SYSTEM, 10, 11]), sequence_hashes([*SYSTEM, 20])
OTHER = sequence_hashes([7, 8])


def found(scan: PrefixScan) -> list[CachedPrefix]:
    try:
        while True:
            next(scan)
    except StopIteration as end:
        return list(end.value)


def store(index: Index, worker: WorkerRank, blocks: list[int], tier: Tier = Tier.Device) -> None:
    index.apply(RouterEvent(worker_id=worker.worker_id, event_id=0, data=Stored(blocks), tier=tier))


def filled() -> Index:
    index = Index()
    for worker in (A, B, C):
        store(index, worker, HELLO)
    store(index, A, BYE)
    store(index, B, OTHER)
    return index


def shape(rows: list[CachedPrefix]) -> list[tuple[int, int | None, int, int, int, list[WorkerRank]]]:
    return [(one.block, one.parent, one.begin, one.blocks, one.held, one.workers) for one in rows]


def test_prefixes_are_a_tree_the_most_held_first() -> None:
    system = HELLO[3]
    assert shape(found(filled().prefixes(10))) == [
        (system, None, 0, 4, 12, [A, B, C]),
        (HELLO[5], system, 4, 2, 6, [A, B, C]),
        (OTHER[1], None, 0, 2, 2, [B]),
        (BYE[4], system, 4, 1, 1, [A]),
    ]


def test_only_the_largest_are_returned_and_their_place_stays_known() -> None:
    index = filled()
    store(index, C, sequence_hashes([*SYSTEM, 10, 11, *range(30, 60)]))
    rows = found(index.prefixes(1))
    assert [(one.begin, one.blocks, one.parent) for one in rows] == [(0, 4, None)]


def test_what_comes_before_a_large_prefix_is_returned_with_it() -> None:
    index = filled()
    store(index, C, sequence_hashes([*SYSTEM, 10, 11, *range(30, 90)]))
    rows = found(index.prefixes(1))
    assert [(one.begin, one.blocks, one.parent) for one in rows] == [(6, 60, HELLO[5]), (0, 4, None), (4, 2, HELLO[3])]


def test_a_run_is_cut_where_another_prompt_branches_off() -> None:
    index = Index()
    store(index, A, HELLO)
    store(index, A, BYE)
    system = HELLO[3]
    assert shape(found(index.prefixes(10))) == [
        (system, None, 0, 4, 4, [A]),
        (HELLO[5], system, 4, 2, 2, [A]),
        (BYE[4], system, 4, 1, 1, [A]),
    ]


def test_a_run_that_is_partly_held_counts_what_is_held() -> None:
    index = Index()
    store(index, A, HELLO)
    store(index, B, HELLO[:3])
    (row,) = found(index.prefixes(10))
    assert (row.held, row.workers) == (9, [A, B])


def test_slower_tiers_are_listed_apart() -> None:
    index = filled()
    store(index, C, OTHER, Tier.Disk)
    assert [(one.block, one.workers) for one in found(index.prefixes(10)) if one.tier is Tier.Disk] == [(OTHER[1], [C])]


def test_what_changes_between_two_steps_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes, "STEP", 1)
    index = filled()
    scan = index.prefixes(10)
    for worker in (A, B, C):
        for _ in range(2):
            next(scan)
        index.remove_worker(worker)
    assert all(one.workers for one in found(scan))
    assert found(index.prefixes(10)) == []


def test_parents_that_form_a_circle_end() -> None:
    index = Index()
    for blocks, parent in (([1], 2), ([2], 1)):
        index.apply(RouterEvent(worker_id=1, event_id=0, data=Stored(blocks, parent)))
    assert {one.block for one in found(index.prefixes(10))} <= {1, 2}


def test_decisions_are_prefixes_too_where_workers_publish_no_events() -> None:
    index = ApproximateIndex()
    for worker in (A, B):
        index.record(worker, HELLO, now=0.0)
    index.record(A, BYE, now=0.0)
    system = HELLO[3]
    assert shape(found(index.prefixes(10))) == [
        (system, None, 0, 4, 8, [A, B]),
        (HELLO[5], system, 4, 2, 4, [A, B]),
        (BYE[4], system, 4, 1, 1, [A]),
    ]
