from __future__ import annotations

from dynamo.router.kv.sync.cursor import Cursor, Order


def test_events_follow_each_other_and_anything_else_is_stale_or_a_gap() -> None:
    cursor = Cursor()
    assert [cursor.see(n) for n in (0, 1, 1, 0, 3, 2)] == [
        Order.Next, Order.Next, Order.Stale, Order.Stale, Order.Gap, Order.Next,
    ]  # fmt: skip


def test_a_router_that_comes_later_starts_with_a_gap_until_a_snapshot_tells_it_where_it_is() -> None:
    cursor = Cursor()
    assert cursor.see(41) is Order.Gap
    cursor.reset(42)
    assert [cursor.see(n) for n in (41, 42, 43)] == [Order.Stale, Order.Stale, Order.Next]
