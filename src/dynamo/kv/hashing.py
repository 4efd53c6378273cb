"""Hashes of blocks of tokens: a local hash per block, and a sequence hash over the whole prefix up to its end."""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from itertools import repeat

import xxhash

from dynamo.protocols.errors import InvalidArgument

BASE_SEED = 1337
_MASK = (1 << 64) - 1
_UNROLLED = 64
digest = xxhash.xxh3_64_intdigest
# The native form of the same bytes is the fastest to write.
pair = struct.Struct("NN" if sys.byteorder == "little" and struct.calcsize("N") == 8 else "<QQ").pack


def salt_seed(lora_name: str | None = None, cache_salt: str | None = None) -> int:
    """The seed that keeps the blocks of adapters and tenants apart; an empty name counts as None."""
    seed = BASE_SEED
    if lora_name:
        seed += digest(lora_name.encode(), 0)
    if cache_salt:
        seed += digest(cache_salt.encode(), 1)
    return seed & _MASK


def local_hashes(tokens: Sequence[int], block_size: int, seed: int = BASE_SEED, *, eagle: bool = False) -> list[int]:
    """One hash per complete block; tokens after the last complete block are left out.

    With `eagle` each block also covers the token after it, as speculative decoding caches pairs of tokens.
    """
    if block_size < 1:
        raise InvalidArgument(f"block size must be at least 1, not {block_size}")
    packed = memoryview(_pack(tokens))
    if not eagle:
        return _hash_blocks(packed, block_size, seed)
    width = 4 * block_size
    count = max(0, len(tokens) - 1) // block_size
    view = packed.cast("B")
    return [digest(view[at : at + width + 4], seed) for at in range(0, count * width, width)]


def sequence_hashes(local: Sequence[int], parent: int | None = None) -> list[int]:
    """The sequence hash of each block, given its local hash and the sequence hash of the block before the first."""
    hashes = list(local[:1]) if parent is None else []
    last = hashes[0] if hashes else parent
    for block in local[len(hashes) :]:
        last = digest(pair(last, block), BASE_SEED)
        hashes.append(last)
    return hashes


def common_blocks(one: Sequence[int], start: int, other: Sequence[int], at: int, most: int) -> int:
    """How many of `most` sequence hashes are equal in `one` from `start` on and in `other` from `at` on.

    The first must be equal. A sequence hash covers all blocks before it, so a bisection finds the first difference.
    """
    if one[start + most - 1] == other[at + most - 1]:
        return most
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        if one[start + middle] == other[at + middle]:
            low = middle + 1
        else:
            high = middle
    return low


def prompt_hashes(
    tokens: Sequence[int], block_size: int, *, lora_name: str | None = None, cache_salt: str | None = None
) -> list[int]:
    """The sequence hash of every complete block of a prompt."""
    return sequence_hashes(local_hashes(tokens, block_size, salt_seed(lora_name, cache_salt)))


class PromptHashes:
    """`prompt_hashes` for prompts that often share a prefix: their common stretches are looked up, not hashed again."""

    def __init__(self, block_size: int, *, stretch_tokens: int = 1024, remembered: int = 2048) -> None:
        self._block_size = block_size
        self._stretch = max(1, stretch_tokens // block_size) * block_size
        self._remembered = remembered
        self._known: dict[tuple[int | None, int], list[int]] = {}
        """The hashes of a stretch by the block before it and the hash of its tokens, least recently used first.

        Empty for a stretch seen once: most prompts never return, and keeping their hashes costs more than hashing.
        """

    def of(self, tokens: Sequence[int], *, lora_name: str | None = None, cache_salt: str | None = None) -> list[int]:
        seed = salt_seed(lora_name, cache_salt)
        packed = memoryview(_pack(tokens))
        known, stretch = self._known, self._stretch
        hashes: list[int] = []
        parent = None
        for at in range(0, len(packed) - stretch + 1, stretch):
            part = packed[at : at + stretch]
            key = (parent, digest(part, seed))
            found = known.pop(key, None)
            new = found or sequence_hashes(_hash_blocks(part, self._block_size, seed), parent)
            if found is None and len(known) >= self._remembered:
                del known[next(iter(known))]
            known[key] = [] if found is None else new
            hashes += new
            parent = hashes[-1]
        rest = packed[len(hashes) * self._block_size :]
        hashes += sequence_hashes(_hash_blocks(rest, self._block_size, seed), parent)
        return hashes


def _hash_blocks(packed: memoryview, block_size: int, seed: int) -> list[int]:
    count = len(packed) // block_size
    many = count // _UNROLLED * _UNROLLED * block_size
    hashes: list[int] = []
    # 64 blocks per iteration: a Python loop over single blocks is slower.
    for run in struct.iter_unpack(f"{4 * block_size}s" * _UNROLLED, packed[:many]):
        hashes += map(digest, run, repeat(seed))
    rest = struct.iter_unpack(f"{4 * block_size}s", packed[many : count * block_size])
    return hashes + [digest(block, seed) for (block,) in rest]


def _pack(tokens: Sequence[int]) -> array[int]:
    try:
        packed = array("I", tokens)
    except (OverflowError, TypeError):
        at, token = next((i, t) for i, t in enumerate(tokens) if not isinstance(t, int) or not 0 <= t < 1 << 32)
        raise InvalidArgument(f"token {at} is {token!r}, not an integer in 0..2^32-1") from None
    if sys.byteorder == "big":
        packed.byteswap()
    return packed
