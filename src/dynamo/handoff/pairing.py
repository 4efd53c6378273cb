"""Which prefill workers can hand over to a decode worker: a pure function of the cards that are there now."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from dynamo.protocols.card import ModelCard, WorkerType

TRANSFER = "kv_transfer"
"""In `runtime_data`: how the worker's engine hands prompts over. Workers without it are paired with any."""

COMPUTES_PROMPTS = "computes_prompts"
"""In `runtime_data` of a decode worker: false if it answers nothing without a prefill worker."""


class Peer(Struct, frozen=True, kw_only=True):
    """One worker as pairing sees it."""

    instance_id: int
    namespace: str
    card: ModelCard


def mismatch(decode: Peer, prefill: Peer) -> str | None:
    """Why these two cannot be paired; None if they can."""
    if decode.namespace != prefill.namespace:
        return f"namespace {prefill.namespace}, not {decode.namespace}"
    here, there = decode.card, prefill.card
    if here.kv_cache_block_size != there.kv_cache_block_size:
        return f"blocks of {there.kv_cache_block_size} tokens, not {here.kv_cache_block_size}"
    ours, theirs = (_transfer(card) for card in (here, there))
    if ours is not None and theirs is not None and ours != theirs:
        return f"hand-off by {theirs}, not by {ours}"
    for role in sorted(here.files.keys() & there.files.keys()):
        if here.files[role].checksum != there.files[role].checksum:
            return f"another {role} file"
    return None


def partners(decode: Peer, prefills: Iterable[Peer]) -> frozenset[int]:
    """The prefill workers that this worker can continue from; none if it computes its prompts itself."""
    if decode.card.worker_type is not WorkerType.Decode:
        return frozenset()
    return frozenset(one.instance_id for one in prefills if mismatch(decode, one) is None)


def _transfer(card: ModelCard) -> str | None:
    found = card.runtime_config.runtime_data.get(TRANSFER)
    return found if isinstance(found, str) else None
