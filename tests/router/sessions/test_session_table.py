"""What is kept of sessions is bounded, and who invents ids displaces nobody else's."""

from __future__ import annotations

import tracemalloc

from dynamo.kv.messages import WorkerRank
from dynamo.protocols.engine import Session
from dynamo.router.sessions.affinity import Affinity
from dynamo.router.sessions.table import MOST_SESSIONS, SessionTable, key_of


def test_a_session_belongs_to_its_owner() -> None:
    assert key_of(Session("s", "one")) != key_of(Session("s", "two"))


def test_the_owner_with_most_sessions_loses_its_oldest_one() -> None:
    table = SessionTable[int](4)
    for number, (owner, id) in enumerate([("quiet", "a"), ("loud", "b"), ("loud", "c"), ("loud", "d"), ("loud", "e")]):
        table.add(key_of(Session(id, owner)), number)
    kept = {value for _, value in table.newest()}
    assert kept == {0, 2, 3, 4}
    assert len(table) == 4


def test_a_session_with_several_turns_outlives_new_ones_of_the_same_owner() -> None:
    table = SessionTable[int](3)
    keys = [key_of(Session(str(number))) for number in range(9)]
    for number, key in enumerate(keys):
        table.add(key, number)
        if not number:
            table.used(key)
    assert [value for _, value in table.newest()] == [0, 8, 7]


def test_what_is_removed_is_not_counted_and_may_come_back() -> None:
    table = SessionTable[int](2)
    key = key_of(Session("s"))
    table.add(key, 1)
    table.remove(key)
    table.remove(key)
    assert (len(table), table.get(key)) == (0, None)
    table.add(key, 2)
    assert table.get(key) == 2


def test_invented_ids_take_little_memory_and_move_no_session() -> None:
    most = 2048
    affinity = Affinity(ttl=3600.0, clock=lambda: 0.0, most=most)
    home, away = WorkerRank(1), WorkerRank(2)
    mine = [Session(f"mine {number}", "-") for number in range(100)]
    theirs = [Session(f"theirs {number}", "other") for number in range(100)]
    for session in (*mine, *mine, *theirs):
        one_turn(affinity, session, home)
    tracemalloc.start()
    try:
        for number in range(3 * most):
            one_turn(affinity, Session(f"{number:0256d}", "-"), away)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used / most * MOST_SESSIONS < 64 << 20
    assert len(affinity.bindings) == most
    for session in (*mine, *theirs):
        bound = affinity.bound(session)
        assert bound is not None
        assert bound.worker == home


def one_turn(affinity: Affinity, session: Session, worker: WorkerRank) -> None:
    turn = affinity.begin(session, worker, 1000)
    turn.served()
    turn.ended(10)
