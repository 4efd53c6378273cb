from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dynamo.kv.idle_blocks import IdleBlocks
from dynamo.kv.pauses import AGES, SessionPause


def returns_in(session: str, seconds: float) -> SessionPause:
    return SessionPause(worker_id=1, session=session, returns_in=seconds)


def idle(*added: tuple[str, str, list[int]]) -> IdleBlocks:
    """One second after the other."""
    found = IdleBlocks()
    for second, (session, tenant, blocks) in enumerate(added):
        found.now = float(second)
        found.add(blocks, session, tenant)
    return found


def test_without_sessions_the_block_that_is_idle_for_longest_leaves() -> None:
    blocks = idle(("", "", [3, 1]), ("", "", [2]))
    assert blocks.take(2) == [3, 1]
    assert blocks.take(9) == [2]
    assert len(blocks) == 0


def test_a_session_that_nothing_is_known_of_leaves_in_the_order_of_time() -> None:
    blocks = idle(("a", "", [1, 2]), ("b", "", [3]), ("c", "", [4]))
    assert blocks.take(4) == [1, 2, 3, 4]


def test_the_session_that_returns_last_gives_way_first() -> None:
    blocks = idle(("soon", "", [1, 2]), ("late", "", [3, 4]))
    blocks.paused(returns_in("soon", 5.0))
    blocks.paused(returns_in("late", 500.0))
    assert blocks.take(3) == [3, 4, 1]


def test_what_a_final_turn_left_goes_at_once() -> None:
    blocks = idle(("old", "", [1]), ("done", "", [2]))
    blocks.paused(SessionPause(worker_id=1, session="done", final=True))
    assert blocks.next() == 2


def test_a_pause_counts_until_the_session_returns() -> None:
    blocks = idle(("a", "", [1, 2]), ("b", "", [3]))
    blocks.paused(SessionPause(worker_id=1, session="a", final=True))
    blocks.remove(1)
    blocks.now = 5.0
    blocks.add([1], "a")
    blocks.paused(returns_in("a", 1.0))
    blocks.paused(returns_in("b", 60.0))
    assert blocks.take(1) == [3]


def test_what_the_last_turn_did_not_use_goes_before_what_it_used() -> None:
    blocks = idle(("a", "", [1, 2]), ("b", "", [3]))
    blocks.remove(1)
    blocks.now = 2.0
    blocks.add([1], "a")
    blocks.paused(returns_in("a", 5.0))
    blocks.paused(returns_in("b", 10.0))
    assert blocks.take(3) == [2, 3, 1]


def test_a_rate_depends_on_how_long_the_session_has_been_idle() -> None:
    early = tuple(1.0 if age < 8 else 0.0 for age in (0.0, *AGES))
    pause = SessionPause(worker_id=1, session="a", rates=early)
    assert pause.rate(3.0) == 1.0
    assert pause.rate(100.0) == 0.0
    assert pause.rate(1e9) == 0.0


def test_a_tenant_pays_for_its_own_sessions_alone() -> None:
    """The tenant whose blocks would leave in the order of time gives up others of its own."""
    blocks = idle(("mine", "me", [1, 2]), ("yours", "you", [3]), ("other", "me", [4, 5]))
    blocks.paused(returns_in("mine", 1.0))
    blocks.paused(returns_in("yours", 1e6))
    blocks.paused(returns_in("other", 1e5))
    assert blocks.take(2) == [4, 5]
    assert blocks.take(1) == [3]
    assert blocks.take(2) == [1, 2]


@given(st.integers(0, 10**9))
def test_each_tenant_loses_as_many_blocks_as_in_the_order_of_time(seed: int) -> None:
    rng = random.Random(seed)
    clever, plain = IdleBlocks(), IdleBlocks()
    owner: dict[int, str] = {}
    for block in range(40):
        tenant = rng.choice(("x", "y", "z"))
        owner[block] = tenant
        clever.now = plain.now = float(block)
        session = f"{tenant}{rng.randrange(3)}"
        clever.add([block], session, tenant)
        plain.add([block])
        clever.paused(returns_in(session, rng.uniform(1, 1000)))
    count = rng.randrange(40)
    lost = Counter(owner[block] for block in clever.take(count))
    assert lost == Counter(owner[block] for block in plain.take(count))
    left = clever.take(99)
    assert sorted(left) == sorted(block for block in owner if block in left)
    assert len(left) == 40 - count


@given(st.integers(0, 10**9))
def test_the_books_balance_however_blocks_come_and_go(seed: int) -> None:
    rng = random.Random(seed)
    blocks, inside, free = IdleBlocks(), set[int](), set(range(30))
    for step in range(120):
        blocks.now = float(step)
        match rng.randrange(5):
            case 0 | 1 if free:
                some = rng.sample(sorted(free), rng.randint(1, len(free)))
                session = rng.choice(("", "a", "b", "c"))
                blocks.add(some, session, {"a": "x", "b": "x", "c": "y"}.get(session, ""))
                inside.update(some)
                free.difference_update(some)
            case 2 if inside:
                block = rng.choice(sorted(inside))
                if rng.random() < 0.5:
                    blocks.touch(block)
                else:
                    blocks.remove(block)
                    inside.discard(block)
                    free.add(block)
            case 3 if inside:
                taken = blocks.take(rng.randint(1, 5))
                assert inside.issuperset(taken)
                inside.difference_update(taken)
                free.update(taken)
            case _:
                blocks.paused(returns_in(rng.choice("abc"), rng.uniform(0, 100)))
        assert len(blocks) == len(inside)
        assert all(block in blocks for block in inside)
    assert sorted(blocks.take(99)) == sorted(inside)


def test_of_many_sessions_those_expected_last_leave_too() -> None:
    blocks = IdleBlocks()
    for number in range(1000):
        blocks.add([number], f"{number}")
        blocks.paused(returns_in(f"{number}", 1.0 + number))
    assert blocks.take(300) == list(range(999, 699, -1))
    blocks.paused(SessionPause(worker_id=1, session="5", final=True))
    blocks.paused(returns_in("6", 5000.0))
    assert blocks.take(1) == [5]
    blocks.now = 1.0
    assert blocks.take(1) == [6]


def test_a_session_of_many_turns_leaves_nothing_behind() -> None:
    blocks = IdleBlocks()
    blocks.add([1], "idle for ever")
    for turn in range(2000):
        blocks.now = float(turn)
        blocks.add([2, 3], "busy")
        blocks.remove(2)
        blocks.remove(3)
    assert len(blocks._tenants[""].released) < 100
    assert blocks.take(5) == [1]
    assert not blocks._tenants
    assert not blocks._sessions
