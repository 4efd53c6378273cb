from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo.kv.messages import Tier
from dynamo.kv.publish.engine_events import (
    EngineBatch,
    EngineCleared,
    EngineRemoved,
    EngineStored,
    MalformedEvents,
    decode_batch,
    decode_sequence,
)

VLLM_STORED = {
    "type": "BlockStored",
    "block_hashes": [8995634022476464264],
    "parent_block_hash": None,
    "token_ids": [10, 17],
    "block_size": 2,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
    "extra_keys": [None],
    "group_idx": 0,
    "kv_cache_spec_kind": "full_attention",
}


def decode(*events: Any, rank: Any = 0) -> EngineBatch:
    return decode_batch(msgspec.msgpack.encode([1.5, list(events), rank]))


def one(event: Any) -> EngineStored:
    (decoded,) = decode(event).events
    assert isinstance(decoded, EngineStored)
    return decoded


def test_the_map_form_is_understood() -> None:
    removed = {"type": "BlockRemoved", "block_hashes": [5], "medium": "GPU", "group_idx": 0}
    batch = decode(VLLM_STORED, removed, {"type": "AllBlocksCleared"}, rank=3)
    assert batch == EngineBatch(
        dp_rank=3,
        events=[
            EngineStored(
                block_hashes=[8995634022476464264],
                parent_hash=None,
                token_ids=[10, 17],
                block_size=2,
                tier=Tier.Device,
                group=0,
                kind="full_attention",
            ),
            EngineRemoved(block_hashes=[5], tier=Tier.Device, group=0),
            EngineCleared(),
        ],
    )


def test_the_positional_form_says_the_same() -> None:
    named = one(VLLM_STORED | {"lora_name": "x", "parent_block_hash": 3})
    hashes = [8995634022476464264]
    full = ["BlockStored", hashes, 3, [10, 17], 2, None, "GPU", "x", [None], None, 0, "full_attention", 128]
    assert one(full) == named
    assert one(["BlockStored", hashes, 3, [10, 17], 2, None]).block_size == 2
    assert decode(["BlockRemoved", [5], "CPU"], ["AllBlocksCleared"]).events == [
        EngineRemoved(block_hashes=[5], tier=Tier.Host),
        EngineCleared(),
    ]


def test_signed_unsigned_and_raw_hashes_of_a_block_are_one_number() -> None:
    unsigned = 2**64 - 5
    raw = bytes(24) + unsigned.to_bytes(8, "big")
    assert one(VLLM_STORED | {"block_hashes": [unsigned, -5, raw]}).block_hashes == [unsigned] * 3
    assert one(VLLM_STORED | {"parent_block_hash": -5}).parent_hash == unsigned


@pytest.mark.parametrize(
    ("medium", "tier"),
    [
        (None, Tier.Device),
        ("GPU", Tier.Device),
        ("CPU_PINNED", Tier.Host),
        ("DISK", Tier.Disk),
        ("SHARED", Tier.External),
        ("TAPE", None),
    ],
)
def test_the_medium_says_the_tier(medium: str | None, tier: Tier | None) -> None:
    assert one(VLLM_STORED | {"medium": medium}).tier is tier


def test_a_cache_salt_is_found_among_the_extra_keys_and_other_keys_make_a_block_opaque() -> None:
    keys = [["dynamo-cache-salt:tenant", "x"], None, ["image-hash"]]
    event = one(VLLM_STORED | {"extra_keys": keys, "lora_name": "x"})
    assert event.cache_salt == "tenant"
    assert event.opaque == {2}
    assert one(VLLM_STORED | {"cache_salt": "direct"}).cache_salt == "direct"


def test_pairs_of_tokens_become_the_tokens_they_were_made_of() -> None:
    event = one(VLLM_STORED | {"token_ids": [[1, 2], [2, 3], [3, 4]]})
    assert event.token_ids == [1, 2, 3, 4]
    assert event.eagle


def test_unknown_events_are_left_out_and_a_rank_may_be_missing() -> None:
    assert decode({"type": "BlockMoved"}, ["Else", 1]).events == []
    assert decode_batch(msgspec.msgpack.encode([1, []])).dp_rank is None


def test_batch_numbers_are_big_endian_and_the_end_of_a_replay_is_minus_one() -> None:
    assert decode_sequence((7).to_bytes(8, "big")) == 7
    assert decode_sequence(b"\xff" * 8) == -1
    with pytest.raises(MalformedEvents, match="has 3 bytes, not 8"):
        decode_sequence(b"abc")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_hashes": None}, "block_hashes is not an array"),
        ({"block_hashes": [True]}, "block hash is True"),
        ({"block_hashes": [b"short"]}, "block hash is b'short'"),
        ({"block_hashes": [1.5]}, "block hash is 1.5"),
        ({"parent_block_hash": "x"}, "block hash is 'x'"),
        ({"token_ids": [-1]}, "token id is -1, not an integer in 0..4294967295"),
        ({"token_ids": [[1, 2], 3]}, "mixes pairs"),
        ({"token_ids": [1, [2, 3]]}, "token id is a list"),
        ({"block_size": -1}, "block_size is -1"),
        ({"medium": 3}, "medium is 3, not a string"),
        ({"extra_keys": 3}, "extra_keys is not an array"),
        ({"group_idx": -1}, "group_idx is -1"),
        ({"type": 3}, "the type of an event is not a string"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(MalformedEvents, match=message):
        decode(VLLM_STORED | change)


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x93", b"\x91" * 5000, b"\x93\x01\x02\x03", b"\x92\xa1x\x90"])
def test_bytes_that_are_no_batch_are_refused(payload: bytes) -> None:
    with pytest.raises(MalformedEvents):
        decode_batch(payload)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=12,
)
FIELDS = st.fixed_dictionaries(
    {"type": st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "?"])},
    optional={name: JSON for name in VLLM_STORED if name != "type"},
)
EVENTS = (
    JSON
    | FIELDS
    | st.builds(
        lambda kind, rest: [kind, *rest], st.sampled_from(["BlockStored", "BlockRemoved"]), st.lists(JSON, max_size=14)
    )
)


@given(st.lists(EVENTS, max_size=4), JSON)
@settings(max_examples=300, deadline=None)
def test_whatever_an_event_holds_it_decodes_or_is_malformed(events: list[Any], rank: Any) -> None:
    try:
        batch = decode(*events, rank=rank)
    except MalformedEvents:
        return
    assert all(0 <= h < 2**64 for e in batch.events if not isinstance(e, EngineCleared) for h in e.block_hashes)


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_random_bytes_raise_nothing_but_malformed(payload: bytes) -> None:
    try:
        decode_batch(payload)
    except MalformedEvents:
        pass


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_damaged_batch_raises_nothing_but_malformed(data: st.DataObject) -> None:
    payload = bytearray(msgspec.msgpack.encode([1.5, [VLLM_STORED, ["BlockRemoved", [-5], "GPU"]], 0]))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode_batch(bytes(payload[: data.draw(st.integers(0, len(payload)))]))
    except MalformedEvents:
        pass
