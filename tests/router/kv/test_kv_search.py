from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dynamo.router.kv.search import prefix_depths, walked_runs
from dynamo.router.kv.slots import Slots, Worker, slots_in

MASKS = st.integers(0, 2**70 - 1)
DEPTHS = st.lists(st.integers(0, 300) | st.integers(0, 40) | st.sampled_from([7, 299]), max_size=70)


@given(MASKS)
def test_the_set_bits_are_numbered_from_the_lowest(mask: int) -> None:
    assert list(slots_in(mask)) == [slot for slot in range(70) if mask >> slot & 1]


@given(DEPTHS, st.integers(0, 310))
def test_workers_are_split_by_the_depth_they_hold(depths: list[int], length: int) -> None:
    chain = list(range(length))
    holders = {block: sum(1 << slot for slot, depth in enumerate(depths) if depth > block) for block in range(300)}
    everyone = (1 << len(depths)) - 1
    assert prefix_depths(holders, chain, everyone, len(depths)) == [min(depth, length) for depth in depths]


@given(st.lists(st.tuples(st.integers(0, 12), st.sets(st.integers(0, 11))), max_size=12), st.integers(0, 12))
def test_a_walk_finds_each_workers_run_from_where_it_begins(workers: list[tuple[int, set[int]]], length: int) -> None:
    holders: dict[int, int] = {}
    starts: dict[int, int] = {}
    expected = {}
    for slot, (begin, held) in enumerate(workers):
        starts[begin] = starts.get(begin, 0) | 1 << slot
        for block in held:
            holders[block] = holders.get(block, 0) | 1 << slot
        end = begin
        while end < length and end in held:
            end += 1
        if end > begin:
            expected[slot] = (begin, end)
    found = [
        (slot, (begin, end))
        for begin, end, mask in walked_runs(holders, list(range(length)), starts)
        for slot in slots_in(mask)
    ]
    assert len(found) == len(expected)
    assert dict(found) == expected


def test_a_freed_number_is_given_to_the_next_worker() -> None:
    slots = Slots()
    assert [slots.take(Worker(n)) for n in (5, 6, 7, 6)] == [0, 1, 2, 1]
    assert slots.release(Worker(6)) == 1
    assert slots.release(Worker(5)) == 0
    assert slots.release(Worker(5)) is None
    assert [slots.take(Worker(n)) for n in (8, 9, 10)] == [0, 1, 3]
    assert len(slots) == 4
