"""Names of computed KV blocks, for whoever decides by them which content is used again.

Routers find blocks by a fast hash that anyone can compute, and collide. Here a wrong hit would change an answer, so a
name is a keyed digest of the salt and of all tokens up to the block's end, with the router's hash as its low 64 bits:
an integer of 192 bits, of which only the low ones leave the worker.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b

from dynamo.kv.hashing import local_hashes, salt_seed, sequence_hashes

NAME_BYTES = 24
SECRET_BYTES = 32
_DIGEST_BYTES = 16
_ROUTED = (1 << 64) - 1


def announced(names: Iterable[int]) -> list[int]:
    """The sequence hashes by which routers know these blocks."""
    return [name & _ROUTED for name in names]


def announced_parent(name: int | None) -> int | None:
    return None if name is None else name & _ROUTED


def prompt_digest(tokens: Sequence[int], cache_salt: str | None) -> bytes:
    """Equal for two workers exactly when salt and tokens are: 256 bits need no common secret."""
    return _begun(blake2b(person=b"dynamo prefix"), cache_salt, array("I", tokens).tobytes()).digest()[:32]


class BlockNames:
    """Names under one secret. Two workers with secrets of their own never find each other's blocks."""

    def __init__(self, block_size: int, secret: bytes | None = None) -> None:
        self.block_size = block_size
        self._keyed = blake2b(key=secret or secrets.token_bytes(SECRET_BYTES), digest_size=_DIGEST_BYTES)

    def of(self, tokens: Sequence[int], cache_salt: str | None = None) -> list[int]:
        """The name of every complete block of a prompt."""
        chain = self.chain(cache_salt)
        chain.extend(tokens, len(tokens) // self.block_size)
        return chain.names

    def chain(self, cache_salt: str | None = None) -> NameChain:
        return NameChain(self.block_size, _begun(self._keyed.copy(), cache_salt), salt_seed(None, cache_salt))


class NameChain:
    """The names of one sequence, which grows."""

    __slots__ = ("_block_size", "_digest", "_seed", "names")

    def __init__(self, block_size: int, digest: blake2b, seed: int) -> None:
        self.names: list[int] = []
        self._block_size = block_size
        self._digest = digest
        """The digest of everything up to the last named block."""
        self._seed = seed

    def extend(self, tokens: Sequence[int], blocks: int) -> None:
        """Know the names of the first `blocks` blocks of `tokens`."""
        names, size = self.names, self._block_size
        known = len(names)
        if blocks <= known:
            return
        fresh = array("I", tokens[known * size : blocks * size])
        parent = announced_parent(names[-1]) if known else None
        routed = sequence_hashes(local_hashes(fresh, size, self._seed), parent)
        digest, packed, width = self._digest, memoryview(fresh).cast("B"), size * fresh.itemsize
        for at, hash in enumerate(routed):
            digest.update(packed[at * width : (at + 1) * width])
            names.append(int.from_bytes(digest.copy().digest(), "little") << 64 | hash)


def _begun(digest: blake2b, cache_salt: str | None, tokens: bytes = b"") -> blake2b:
    salt = (cache_salt or "").encode(errors="surrogatepass")
    # The length keeps a salt and the tokens after it apart.
    digest.update(len(salt).to_bytes(8, "little") + salt + tokens)
    return digest
