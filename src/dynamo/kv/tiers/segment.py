"""A segment: the state of consecutive KV blocks, named by the hash of its last one, which covers all tokens before.

As bytes: magic, the checksum of all that follows, number of blocks, whether there is a parent, parent, length of the
data, the blocks' hashes, the data.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import xxhash
from msgspec import Struct

MAGIC = b"DYNKV\0\0\1"
_CHECKSUM = 16
_COUNTS = struct.Struct("<IIQQ")
_FIXED = len(MAGIC) + _CHECKSUM + _COUNTS.size
_MOST_BLOCKS = 1 << 16


class DamagedSegment(Exception):
    """The bytes are no segment, or not all of one, or not what was written."""


class SegmentHeader(Struct, frozen=True):
    hashes: tuple[int, ...]
    """Sequence hashes of its blocks, in order."""
    parent: int | None
    """The block before the first; None at a prompt's start."""
    size: int
    """The bytes of the whole segment."""

    @property
    def key(self) -> int:
        return self.hashes[-1]


class KvSegment(Struct, frozen=True):
    hashes: tuple[int, ...]
    parent: int | None
    data: bytes

    @property
    def key(self) -> int:
        return self.hashes[-1]

    @property
    def size(self) -> int:
        """What it takes in a tier."""
        return _FIXED + 8 * len(self.hashes) + len(self.data)

    @property
    def header(self) -> SegmentHeader:
        return SegmentHeader(self.hashes, self.parent, self.size)

    def to_bytes(self) -> list[bytes]:
        """In pieces: the data is not copied."""
        described = _COUNTS.pack(len(self.hashes), self.parent is not None, self.parent or 0, len(self.data))
        described += struct.pack(f"<{len(self.hashes)}Q", *self.hashes)
        return [MAGIC + _checksum((described, self.data)) + described, self.data]


def read_header(start: bytes, size: int) -> SegmentHeader:
    """The header in the first bytes of a file of `size` bytes; whether the data is whole is not checked."""
    if len(start) < _FIXED or start[: len(MAGIC)] != MAGIC:
        raise DamagedSegment("not a segment")
    count, has_parent, parent, length = _COUNTS.unpack_from(start, _FIXED - _COUNTS.size)
    if not 0 < count <= _MOST_BLOCKS or has_parent > 1 or _FIXED + 8 * count + length != size:
        raise DamagedSegment("not all of a segment")
    if len(start) < _FIXED + 8 * count:
        raise DamagedSegment("a longer header than expected")
    return SegmentHeader(struct.unpack_from(f"<{count}Q", start, _FIXED), parent if has_parent else None, size)


def from_bytes(whole: bytes) -> KvSegment:
    header = read_header(whole, len(whole))
    checksum, described = len(MAGIC), len(MAGIC) + _CHECKSUM
    if whole[checksum:described] != _checksum((memoryview(whole)[described:],)):
        raise DamagedSegment("the checksum differs")
    return KvSegment(header.hashes, header.parent, whole[_FIXED + 8 * len(header.hashes) :])


def header_bytes(blocks: int) -> int:
    """How many bytes of a file hold the header of a segment of `blocks` blocks."""
    return _FIXED + 8 * blocks


def _checksum(parts: Sequence[bytes | memoryview]) -> bytes:
    digest = xxhash.xxh3_128()
    for part in parts:
        digest.update(part)
    return digest.digest()
