from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dynamo.kv.messages import (
    KV_WIRE_VERSION,
    ActiveLoad,
    Cleared,
    KvSnapshot,
    Removed,
    ReservationAdded,
    ReservationBatch,
    ReservationFreed,
    ReservationPrefillDone,
    RouterEvent,
    RouterEventBatch,
    SnapshotRequest,
    Stored,
    Tier,
    TierSnapshot,
)

BIG = 2**64 - 1
MESSAGES = [
    RouterEventBatch(
        version=2,
        events=[
            RouterEvent(worker_id=BIG, event_id=0, data=Stored([BIG, 2], parent=BIG)),
            RouterEvent(worker_id=1, event_id=1, dp_rank=3, tier=Tier.Disk, data=Removed([BIG])),
            RouterEvent(worker_id=1, event_id=2, data=Cleared()),
        ],
    ),
    SnapshotRequest(worker_id=1, dp_rank=2),
    KvSnapshot(
        version=2,
        worker_id=1,
        last_event_id=7,
        tiers=[TierSnapshot(tier=Tier.Host, sequence_hashes=[BIG], parents=[None])],
    ),
    ActiveLoad(worker_id=1, kv_used_blocks=0, kv_total_blocks=10),
    ReservationBatch(
        [
            ReservationAdded(router_id=BIG, request_id="x", worker_id=1, prompt_tokens=2, prefill_tokens=1),
            ReservationPrefillDone(router_id=1, request_id="x"),
            ReservationFreed(router_id=1, request_id="x"),
        ]
    ),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_survive_the_wire(message: Any) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=type(message)) == message


@pytest.mark.parametrize(
    "change",
    [
        {"worker_id": -1},
        {"event_id": None},
        {"tier": "tape"},
        {"dp_rank": -1},
        {"data": {"type": "moved"}},
        {"data": {"type": "removed", "sequence_hashes": [-1]}},
        {"data": {"type": "stored", "block_hashes": [1]}},
        {"data": {"type": "stored", "sequence_hashes": [1], "parent": -1}},
        {"data": {"type": "stored", "sequence_hashes": 1}},
    ],
)
def test_an_event_with_a_wrong_field_is_refused(change: dict[str, Any]) -> None:
    good = {"worker_id": 1, "event_id": 0, "data": {"type": "cleared"}}
    msgspec.msgpack.decode(msgspec.msgpack.encode(good), type=RouterEvent)
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(good | change), type=RouterEvent)


@pytest.mark.parametrize("version", [None, 1, 3])
@pytest.mark.parametrize(
    ("message", "of"),
    [({"events": []}, RouterEventBatch), ({"worker_id": 1, "tiers": []}, KvSnapshot)],
    ids=["events", "snapshot"],
)
def test_events_and_snapshots_of_another_version_are_refused(
    message: dict[str, Any], of: type[Any], version: int | None
) -> None:
    msgspec.msgpack.decode(msgspec.msgpack.encode({**message, "version": KV_WIRE_VERSION}), type=of)
    other = message if version is None else {**message, "version": version}
    with pytest.raises(msgspec.ValidationError, match="version"):
        msgspec.msgpack.decode(msgspec.msgpack.encode(other), type=of)
