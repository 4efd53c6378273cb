from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dynamo.kv.index.slots import Slots, fill, slots_in
from dynamo.kv.messages import WorkerRank

MASKS = st.integers(0, 2**70 - 1)


@given(MASKS)
def test_the_set_bits_are_numbered_from_the_lowest(mask: int) -> None:
    assert list(slots_in(mask)) == [slot for slot in range(70) if mask >> slot & 1]


@given(MASKS, st.integers(0, 8))
def test_a_value_is_written_for_the_workers_of_a_mask(mask: int, more: int) -> None:
    column = [0] * (mask.bit_length() + more)
    fill(column, mask, 7)
    assert column == [7 * (mask >> slot & 1) for slot in range(len(column))]


def test_a_freed_number_is_given_to_the_next_worker() -> None:
    slots = Slots()
    assert [slots.take(WorkerRank(n)) for n in (5, 6, 7, 6)] == [0, 1, 2, 1]
    assert slots.release(WorkerRank(6)) == 1
    assert slots.release(WorkerRank(5)) == 0
    assert slots.release(WorkerRank(5)) is None
    assert [slots.take(WorkerRank(n)) for n in (8, 9, 10)] == [0, 1, 3]
    assert len(list(slots)) == 4
