"""KV cache events as vLLM and SGLang publish them over ZMQ: bytes in, plain structs out, or one kind of error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from dynamo.kv.messages import Tier
from dynamo.protocols.errors import ProtocolError

SALT_KEY = "dynamo-cache-salt:"
"""How a cache salt travels inside vLLM's extra keys."""

_TIERS = {
    **dict.fromkeys(("GPU", "DEVICE"), Tier.Device),
    **dict.fromkeys(("CPU", "CPU_PINNED", "CPU_TIER1"), Tier.Host),
    **dict.fromkeys(("CPU_TIER2", "DISK", "NVME", "STORAGE"), Tier.Disk),
    **dict.fromkeys(("EXTERNAL", "NETWORK", "REMOTE", "SHARED"), Tier.External),
}
_STORED_FIELDS = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
)
_REMOVED_FIELDS = ("block_hashes", "medium")


class MalformedEvents(ProtocolError):
    """An engine sent bytes that are not a batch of KV events."""


class EngineStored(Struct, frozen=True, kw_only=True):
    block_hashes: list[int]
    parent_hash: int | None
    token_ids: list[int]
    block_size: int
    """0: vLLM's offloading names blocks without their tokens."""
    tier: Tier | None
    """None: an unknown medium."""
    lora_name: str | None = None
    cache_salt: str | None = None
    opaque: frozenset[int] = frozenset()
    """Positions of blocks whose content depends on more than tokens, adapter and salt (an image, say)."""
    eagle: bool = False
    local: bool = True
    """False where the block lies with another worker."""
    group: int | None = None
    kind: str | None = None


class EngineRemoved(Struct, frozen=True, kw_only=True):
    block_hashes: list[int]
    tier: Tier | None
    group: int | None = None
    kind: str | None = None
    local: bool = True


class EngineCleared(Struct, frozen=True):
    pass


class EngineBatch(Struct, frozen=True, kw_only=True):
    events: list[EngineStored | EngineRemoved | EngineCleared]
    """The events of known types."""
    dp_rank: int | None


def decode_batch(payload: bytes) -> EngineBatch:
    """Decode the third frame of a message; raises MalformedEvents for anything that is wrong with it."""
    try:
        raw = msgspec.msgpack.decode(payload)
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise MalformedEvents(f"not msgpack: {error}") from None
    if not isinstance(raw, list) or not 2 <= len(raw) <= 8:
        raise MalformedEvents("a batch is [timestamp, events, data parallel rank]")
    timestamp, events = raw[0], raw[1]
    rank = raw[2] if len(raw) > 2 else None
    if isinstance(timestamp, bool) or not isinstance(timestamp, (int, float)):
        raise MalformedEvents("the timestamp is not a number")
    if not isinstance(events, list):
        raise MalformedEvents("the events are not an array")
    if rank is not None:
        rank = _integer(rank, "data parallel rank", 0, 1 << 32)
    decoded = [_event(event) for event in events]
    return EngineBatch(events=[event for event in decoded if event is not None], dp_rank=rank)


def decode_sequence(frame: bytes) -> int:
    """The second frame: the number of the batch. The engine's end-of-replay mark reads as -1."""
    if len(frame) != 8:
        raise MalformedEvents(f"the batch number has {len(frame)} bytes, not 8")
    return int.from_bytes(frame, "big", signed=True)


def _event(raw: Any) -> EngineStored | EngineRemoved | EngineCleared | None:
    if isinstance(raw, dict):
        kind, fields = raw.get("type"), raw
    elif isinstance(raw, list) and raw:
        kind, fields = raw[0], {}
        if kind == "BlockStored":
            fields = _positional(raw, _STORED_FIELDS)
        elif kind == "BlockRemoved":
            fields = _positional(raw, _REMOVED_FIELDS)
    else:
        raise MalformedEvents("an event is a map with a type or an array that begins with it")
    if not isinstance(kind, str):
        raise MalformedEvents("the type of an event is not a string")
    decode = _DECODERS.get(kind)
    return decode(fields) if decode else None


def _positional(raw: list[Any], names: Sequence[str]) -> dict[str, Any]:
    """Fields by position; those after the last fixed one differ between versions and are recognised by their type."""
    fields = dict(zip(names, raw[1:], strict=False))
    for value in raw[1 + len(names) :]:
        if isinstance(value, list):
            fields.setdefault("block_mm_infos", value)
        elif isinstance(value, str):
            fields.setdefault("kv_cache_spec_kind", value)
        elif isinstance(value, int) and not isinstance(value, bool):
            # The first number is the group, a second one the width of its sliding window.
            fields.setdefault("group_idx", value)
    return fields


def _stored(fields: Mapping[str, Any]) -> EngineStored:
    hashes = _hashes(fields)
    parent = fields.get("parent_block_hash")
    tokens, eagle = _tokens(fields.get("token_ids"))
    lora_name = _text(fields, "lora_name")
    salt, opaque = _extra_keys(fields, lora_name)
    return EngineStored(
        block_hashes=hashes,
        parent_hash=None if parent is None else _hash(parent),
        token_ids=tokens,
        block_size=_integer(fields.get("block_size"), "block_size", 0, 1 << 32),
        tier=_tier(fields),
        lora_name=lora_name,
        cache_salt=_text(fields, "cache_salt") or salt,
        opaque=opaque,
        eagle=eagle or fields.get("is_eagle") is True,
        local=_local(fields),
        group=_group(fields),
        kind=_text(fields, "kv_cache_spec_kind"),
    )


def _removed(fields: Mapping[str, Any]) -> EngineRemoved:
    return EngineRemoved(
        block_hashes=_hashes(fields),
        tier=_tier(fields),
        group=_group(fields),
        kind=_text(fields, "kv_cache_spec_kind"),
        local=_local(fields),
    )


_DECODERS: dict[str, Callable[[Mapping[str, Any]], EngineStored | EngineRemoved | EngineCleared]] = {
    "BlockStored": _stored,
    "BlockRemoved": _removed,
    "AllBlocksCleared": lambda _: EngineCleared(),
}


def _hashes(fields: Mapping[str, Any]) -> list[int]:
    hashes = fields.get("block_hashes")
    if not isinstance(hashes, list):
        raise MalformedEvents("block_hashes is not an array")
    return [_hash(value) for value in hashes]


def _hash(value: Any) -> int:
    """Signed, unsigned and raw hashes of the same block come out as the same unsigned 64-bit number."""
    if isinstance(value, bytes) and len(value) >= 8:
        return int.from_bytes(value[-8:], "big")
    return _integer(value, "block hash", -(1 << 63), 1 << 64) & ((1 << 64) - 1)


def _integer(value: Any, name: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value < high:
        raise MalformedEvents(f"{name} is {_shown(value)}, not an integer in {low}..{high - 1}")
    return value


def _tokens(raw: Any) -> tuple[list[int], bool]:
    """Token ids; pairs of neighbours, as speculative decoding caches them, become the tokens they were made of."""
    if not isinstance(raw, list):
        raise MalformedEvents("token_ids is not an array")
    pairs = bool(raw) and isinstance(raw[0], list)
    if pairs:
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in raw):
            raise MalformedEvents("token_ids mixes pairs with other things")
        raw = [pair[0] for pair in raw] + [raw[-1][1]]
    return [_integer(token, "token id", 0, 1 << 32) for token in raw], pairs


def _extra_keys(fields: Mapping[str, Any], lora_name: str | None) -> tuple[str | None, frozenset[int]]:
    raw = fields.get("extra_keys")
    salt = None
    opaque: set[int] = set()
    if raw is not None and not isinstance(raw, list):
        raise MalformedEvents("extra_keys is not an array")
    for at, keys in enumerate(raw or ()):
        for key in keys if isinstance(keys, list) else () if keys is None else (keys,):
            if isinstance(key, str) and key.startswith(SALT_KEY):
                salt = key.removeprefix(SALT_KEY)
            elif key != lora_name:
                opaque.add(at)
    infos = fields.get("block_mm_infos")
    if isinstance(infos, list):
        opaque |= {at for at, info in enumerate(infos) if info}
    return salt, frozenset(opaque)


def _tier(fields: Mapping[str, Any]) -> Tier | None:
    medium = _text(fields, "medium")
    return Tier.Device if medium is None else _TIERS.get(medium.upper())


def _local(fields: Mapping[str, Any]) -> bool:
    return (_text(fields, "locality") or "LOCAL").upper() == "LOCAL"


def _group(fields: Mapping[str, Any]) -> int | None:
    group = fields.get("group_idx")
    return None if group is None else _integer(group, "group_idx", 0, 1 << 32)


def _text(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise MalformedEvents(f"{name} is {_shown(value)}, not a string")
    return value


def _shown(value: Any) -> str:
    if not isinstance(value, (int, float, str, bytes, type(None))):
        return f"a {type(value).__name__}"
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
