from __future__ import annotations

import random

import pytest

from dynamo.kv.hashing import sequence_hashes
from dynamo.kv.index.approximate import ApproximateIndex
from dynamo.kv.index.overlaps import Overlap
from dynamo.kv.messages import WorkerRank

A, B = WorkerRank(1), WorkerRank(2)


def test_what_was_sent_to_a_worker_is_expected_there() -> None:
    index = ApproximateIndex()
    index.record(A, [1, 2, 3], 0)
    index.record(B, [1, 2, 9], 0)
    assert index.match([1, 2, 3, 4], 1).by_worker() == {A: Overlap(3), B: Overlap(2)}
    assert index.match([], 1).by_worker() == {}


def test_blocks_are_forgotten_after_their_time_unless_sent_again() -> None:
    index = ApproximateIndex(ttl=120)
    index.record(A, [1, 2, 3], 0)
    index.record(A, [1, 2], 100)
    assert index.match([1, 2, 3], 119).by_worker() == {A: Overlap(3)}
    assert index.match([1, 2, 3], 120).by_worker() == {A: Overlap(2)}
    assert index.match([1, 2, 3], 220).by_worker() == {}
    assert len(index) == 0


def test_beyond_its_size_the_oldest_ends_of_chains_go_first() -> None:
    index = ApproximateIndex(max_blocks=10, prune_to=0.5)
    index.record(A, [1, 2, 3, 4, 5, 6], 0)
    index.record(B, [1, 7, 8, 9, 10], 1)
    assert len(index) == 5
    assert index.match([1, 2, 3], 1).by_worker() == {B: Overlap(1)}
    assert index.match([1, 7, 8, 9, 10], 1).by_worker() == {B: Overlap(5)}


def test_a_prompt_sent_again_and_again_is_kept_once() -> None:
    index = ApproximateIndex(ttl=120)
    for turn in range(1000):
        index.record(A, [1, 2, 3], turn * 0.01)
        index.record(A, [1, 2], turn * 0.01)
        index.record(A, [], turn * 0.01)
    assert len(index._sent) == 3
    assert index.match([1, 2, 3], 129.9).by_worker() == {A: Overlap(3)}
    assert index.match([1, 2, 3], 130).by_worker() == {}
    assert (len(index), len(index._sent)) == (0, 0)


def test_a_worker_that_leaves_is_forgotten_and_its_slot_used_again() -> None:
    index = ApproximateIndex()
    for worker_id in range(100):
        index.record(WorkerRank(worker_id), [1, 2], 0)
        index.remove_worker(WorkerRank(worker_id))
    index.record(A, [1], 0)
    assert index.match([1, 2], 0).by_worker() == {A: Overlap(1)}
    assert len(index._slots.workers) == 1


@pytest.mark.parametrize("seed", range(10))
def test_every_answer_is_the_depth_of_blocks_young_enough(seed: int) -> None:
    rng = random.Random(seed)
    index = ApproximateIndex(ttl=20)
    touched: dict[tuple[WorkerRank, int], float] = {}
    now = 0.0
    for _ in range(200):
        now += rng.choice((0, 1, 3))
        chain = sequence_hashes([rng.choice((1, 2)) for _ in range(rng.randrange(8))])
        worker = WorkerRank(rng.randrange(3))
        if rng.random() < 0.05:
            index.remove_worker(worker)
            touched = {key: at for key, at in touched.items() if key[0] != worker}
        else:
            index.record(worker, chain, now)
            touched.update({(worker, block): now for block in chain})
        asked = sequence_hashes([rng.choice((1, 2)) for _ in range(6)])
        expected = {}
        for worker in map(WorkerRank, range(3)):
            depth = 0
            while depth < len(asked) and now - touched.get((worker, asked[depth]), -99) < 20:
                depth += 1
            if depth:
                expected[worker] = Overlap(depth)
        assert index.match(asked, now).by_worker() == expected
