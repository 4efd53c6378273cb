"""What a router counts of KV events."""

from __future__ import annotations

import pytest

from dynamo.kv.index.index import Index
from dynamo.kv.messages import Cleared, KvChange, Removed, RouterEvent, Stored
from dynamo.protocols.errors import InvalidArgument
from dynamo.router.stats import RouterStats


def test_events_count_by_type_and_by_what_became_of_them() -> None:
    index, stats = Index(), RouterStats()

    def apply(change: KvChange) -> None:
        stats.count_applied(change, index.apply(RouterEvent(worker_id=1, event_id=0, data=change)))

    apply(Stored([10, 20]))
    apply(Stored([10, 30]))  # partly new: a prompt that diverges
    assert stats.duplicate_stores == 0
    apply(Stored([10, 20]))
    assert stats.duplicate_stores == 1
    apply(Removed([20]))
    apply(Removed([999, 30]))
    apply(Cleared())
    twice = Stored([40, 40])
    with pytest.raises(InvalidArgument):
        apply(twice)
    stats.count_rejected(twice)
    assert dict(stats.events) == {
        ("stored", "ok"): 3,
        ("removed", "ok"): 1,
        ("removed", "block_not_found"): 1,
        ("cleared", "ok"): 1,
        ("stored", "invalid_block"): 1,
    }
