from __future__ import annotations

import pytest

from dynamo.engines.mocker.blocks import BlockPool
from dynamo.kv.hashing import local_hashes, salt_seed, sequence_hashes
from dynamo.kv.messages import Cleared, Removed, Stored

ONE_TO_TWELVE = list(range(1, 13))


def put(pool: BlockPool, hashes: list[int], parent: int | None = None) -> list[int]:
    """Compute blocks with these hashes."""
    blocks = pool.allocate(len(hashes))
    pool.store(blocks, hashes, parent)
    return blocks


def test_hashes_are_those_every_router_computes() -> None:
    local = local_hashes(ONE_TO_TWELVE, 4)
    assert local == [14643705804678351452, 16777012769546811212, 483935686894639516]
    assert sequence_hashes(local) == [14643705804678351452, 4945711292740353085, 12583592247330656132]
    assert sequence_hashes(local[2:], sequence_hashes(local[:2])[-1]) == [12583592247330656132]


def test_only_full_blocks_are_hashed() -> None:
    assert local_hashes(ONE_TO_TWELVE[:11], 4) == local_hashes(ONE_TO_TWELVE[:8], 4)
    assert local_hashes([1, 2, 3], 4) == []


@pytest.mark.parametrize(
    ("lora", "salt", "expected"),
    [
        ("my-lora", None, 15671544057904749233),
        (None, "tenant-a", 5738685477468498325),
        ("my-lora", "tenant-a", 6157910915076630503),
        ("", "", 14643705804678351452),
    ],
)
def test_adapters_and_salts_keep_blocks_apart(lora: str | None, salt: str | None, expected: int) -> None:
    assert local_hashes([1, 2, 3, 4], 4, salt_seed(lora, salt)) == [expected]


def test_a_released_block_is_found_until_it_is_needed_for_something_else() -> None:
    pool = BlockPool(3)
    pool.release(put(pool, [10, 11, 12]))
    assert pool.lookup([10, 11, 12], 3) == [0, 1, 2]
    assert pool.free == 3
    pool.allocate(1)
    assert len(pool.lookup([10, 11, 12], 3)) == 2


def test_the_tail_of_a_chain_is_evicted_before_its_head() -> None:
    pool = BlockPool(3)
    pool.release(put(pool, [10, 11, 12]))
    pool.take_events()
    pool.allocate(3)
    assert pool.take_events() == [Removed([12, 11, 10])]


def test_the_block_free_for_longest_is_evicted_first_and_use_makes_it_young_again() -> None:
    pool = BlockPool(3)
    for name in (10, 20, 30):
        pool.release(put(pool, [name]))
    pool.hold(pool.lookup([10], 1))
    pool.release(pool.lookup([10], 1))
    pool.take_events()
    pool.allocate(3)
    assert pool.take_events() == [Removed([20, 30, 10])]


def test_blocks_never_used_go_before_cached_ones() -> None:
    pool = BlockPool(4)
    pool.release(put(pool, [10, 11]))
    pool.allocate(2)
    assert len(pool.lookup([10, 11], 2)) == 2


def test_a_released_block_that_was_never_full_goes_first() -> None:
    pool = BlockPool(4)
    blocks = put(pool, [10, 11])
    unfinished = pool.allocate(2)
    pool.release([*blocks, *unfinished])
    assert pool.allocate(2) == [3, 2]
    assert len(pool.lookup([10, 11], 2)) == 2


def test_a_held_block_is_not_free_and_not_evicted() -> None:
    pool = BlockPool(2)
    pool.release(put(pool, [10, 11]))
    found = pool.lookup([10], 1)
    assert pool.idle_among(found) == 1
    pool.hold(found)
    pool.hold(found)
    assert (pool.idle_among(found), pool.free) == (0, 1)
    pool.release(found)
    assert pool.free == 1
    pool.allocate(1)
    with pytest.raises(ValueError, match="1 blocks asked of 0 free"):
        pool.allocate(1)
    assert pool.cached_hashes() == {10}


def test_stored_events_carry_the_parent() -> None:
    pool = BlockPool(4)
    put(pool, [10, 11], 9)
    assert pool.take_events() == [Stored([10, 11], 9)]
    assert pool.take_events() == []


def test_a_second_copy_is_not_told_and_its_loss_neither() -> None:
    pool = BlockPool(4)
    first = put(pool, [10, 11])
    pool.take_events()
    second = put(pool, [10, 11])
    assert pool.take_events() == []
    pool.release(second)
    pool.release(first)
    pool.check()


def test_a_run_of_new_blocks_after_a_copy_hangs_on_the_copy() -> None:
    pool = BlockPool(4)
    put(pool, [10])
    pool.take_events()
    put(pool, [10, 11, 12])
    assert pool.take_events() == [Stored([11, 12], 10)]


def test_of_several_copies_the_first_is_found() -> None:
    pool = BlockPool(2)
    first = put(pool, [10])
    put(pool, [10])
    assert pool.lookup([10], 1) == first


def test_only_the_loss_of_the_last_copy_is_told() -> None:
    pool = BlockPool(2)
    first = put(pool, [10])
    second = put(pool, [10])
    pool.take_events()
    pool.release(first)
    pool.allocate(1)
    assert pool.take_events() == []
    pool.release(second)
    pool.allocate(1)
    assert pool.take_events() == [Removed([10])]


def test_clearing_forgets_everything_but_not_under_a_running_request() -> None:
    pool = BlockPool(2)
    blocks = put(pool, [10])
    assert not pool.clear()
    pool.release(blocks)
    pool.take_events()
    assert pool.clear()
    assert pool.take_events() == [Cleared()]
    assert pool.lookup([10], 1) == []
    pool.check()


def test_without_caching_nothing_is_found_or_told() -> None:
    pool = BlockPool(2, caching=False)
    pool.release(put(pool, [10]))
    assert pool.lookup([10], 1) == []
    assert pool.take_events() == []
