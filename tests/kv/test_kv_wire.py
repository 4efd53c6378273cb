"""Whatever bytes arrive as KV events, nothing breaks."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dynamo.kv.index.index import Index
from dynamo.kv.messages import (
    KV_WIRE_VERSION,
    Cleared,
    Removed,
    RouterEvent,
    RouterEventBatch,
    Stored,
    Tier,
    WorkerRank,
)
from dynamo.protocols.errors import InvalidArgument

GOOD = msgspec.msgpack.encode(
    RouterEventBatch(
        version=KV_WIRE_VERSION,
        events=[
            RouterEvent(worker_id=2**64 - 1, event_id=0, data=Stored([2**64 - 1, 2], parent=3)),
            RouterEvent(worker_id=1, event_id=1, dp_rank=3, tier=Tier.Disk, data=Removed([5])),
            RouterEvent(worker_id=1, event_id=2, data=Cleared()),
        ],
    )
)


@given(st.binary(max_size=200))
def test_random_bytes_are_events_or_undecodable(data: bytes) -> None:
    decode_or_refuse(data)


@given(st.data())
def test_damaged_events_are_events_or_undecodable(data: st.DataObject) -> None:
    damaged = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    decode_or_refuse(bytes(damaged[: data.draw(st.integers(0, len(damaged)))]))


ODD = st.sampled_from([None, True, -1, 2**64 - 1, 1.5, "x", b"x", [], [1, -1], [[1]], {}, {"type": 1}])
EVENT = st.fixed_dictionaries(
    {"worker_id": st.integers(0, 3) | ODD, "event_id": st.integers(0, 9) | ODD},
    optional={
        "dp_rank": st.integers(0, 2) | ODD,
        "tier": st.sampled_from(["device", "host", "tape"]) | ODD,
        "data": ODD
        | st.fixed_dictionaries(
            {"type": st.sampled_from(["stored", "removed", "cleared", "moved"])},
            optional={
                "sequence_hashes": st.lists(st.integers(0, 5), max_size=5) | ODD,
                "parent": st.integers(0, 5) | ODD,
            },
        ),
    },
)


@given(st.lists(EVENT, max_size=5))
def test_whatever_decodes_is_applied_or_refused_without_a_change(events: list[Any]) -> None:
    index = Index()
    batch = decode_or_refuse(msgspec.msgpack.encode({"version": KV_WIRE_VERSION, "events": events}))
    for event in batch.events if batch else []:
        worker = WorkerRank(event.worker_id, event.dp_rank)
        before = index.snapshot(worker)
        try:
            index.apply(event)
        except InvalidArgument:
            assert index.snapshot(worker) == before
        for known in index.workers:
            held = [block for part in index.snapshot(known) for block in part.sequence_hashes]
            assert len(held) == sum(index.blocks(known, tier) for tier in Tier)
    for known in index.workers:
        index.remove_worker(known)
    assert len(index) == 0


def decode_or_refuse(data: bytes) -> RouterEventBatch | None:
    """As a router does; any other exception fails the test."""
    try:
        return msgspec.msgpack.decode(data, type=RouterEventBatch)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
