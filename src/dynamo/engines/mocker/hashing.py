"""Names for blocks of tokens: one hash of a block's own tokens, one of the whole chain that ends in it."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence

from xxhash import xxh3_64_intdigest

SEED = 1337
_PAIR = struct.Struct("<QQ").pack


def salt_seed(lora_name: str | None = None, cache_salt: str | None = None) -> int:
    """The seed of a block's own hash: equal tokens under another adapter or salt are other blocks."""
    seed = SEED
    if lora_name:
        seed += xxh3_64_intdigest(lora_name.encode(), 0)
    if cache_salt:
        seed += xxh3_64_intdigest(cache_salt.encode(), 1)
    return seed & 0xFFFF_FFFF_FFFF_FFFF


def local_hashes(tokens: Sequence[int], block_size: int, seed: int = SEED) -> list[int]:
    """One hash per full block; the tokens of an unfinished last block are left out."""
    data = array("I", tokens)
    raw = memoryview(data).cast("B")
    width = block_size * data.itemsize
    return [xxh3_64_intdigest(raw[at : at + width], seed) for at in range(0, len(raw) - width + 1, width)]


def chain(parent: int | None, local: Sequence[int]) -> list[int]:
    """Each block's hash together with all before it, going on from `parent`."""
    hashes = []
    for own in local:
        parent = own if parent is None else xxh3_64_intdigest(_PAIR(parent, own), SEED)
        hashes.append(parent)
    return hashes
