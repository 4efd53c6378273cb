"""A segment: the state of consecutive KV blocks, under the name of its last one, which covers all tokens before.

As bytes: magic, the checksum of all that follows, number of blocks, whether there is a parent, parent, length of the
data, the blocks' names, the data.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import xxhash
from msgspec import Struct

from dynamo.kv.block_names import NAME_BYTES, announced, announced_parent
from dynamo.kv.messages import Removed, Stored

MAGIC = b"DYNKV\0\0\2"
_CHECKSUM = 16
_COUNTS = struct.Struct(f"<II{NAME_BYTES}sQ")
_FIXED = len(MAGIC) + _CHECKSUM + _COUNTS.size
_MOST_BLOCKS = 1 << 16


class DamagedSegment(Exception):
    """The bytes are no segment, or not all of one, or not what was written."""


class SegmentHeader(Struct, frozen=True):
    hashes: tuple[int, ...]
    """The names of its blocks, in order."""
    parent: int | None
    """The block before the first; None at a prompt's start."""
    size: int
    """The bytes of the whole segment."""

    @property
    def key(self) -> int:
        return self.hashes[-1]

    def stored(self) -> Stored:
        return Stored(announced(self.hashes), announced_parent(self.parent))

    def removed(self) -> Removed:
        return Removed(announced(self.hashes))


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
        return _FIXED + NAME_BYTES * len(self.hashes) + len(self.data)

    @property
    def header(self) -> SegmentHeader:
        return SegmentHeader(self.hashes, self.parent, self.size)

    def to_bytes(self) -> list[bytes]:
        """In pieces: the data is not copied."""
        described = _COUNTS.pack(len(self.hashes), self.parent is not None, _packed(self.parent or 0), len(self.data))
        described += b"".join(map(_packed, self.hashes))
        return [MAGIC + _checksum((described, self.data)) + described, self.data]


def read_header(start: bytes, size: int) -> SegmentHeader:
    """The header in the first bytes of a file of `size` bytes; whether the data is whole is not checked."""
    if len(start) < _FIXED or start[: len(MAGIC)] != MAGIC:
        raise DamagedSegment("not a segment")
    count, has_parent, parent, length = _COUNTS.unpack_from(start, _FIXED - _COUNTS.size)
    if not 0 < count <= _MOST_BLOCKS or has_parent > 1 or _FIXED + NAME_BYTES * count + length != size:
        raise DamagedSegment("not all of a segment")
    if len(start) < _FIXED + NAME_BYTES * count:
        raise DamagedSegment("a longer header than expected")
    listed = struct.unpack_from(f"{NAME_BYTES}s" * count, start, _FIXED)
    names = tuple(int.from_bytes(name, "little") for name in listed)
    return SegmentHeader(names, int.from_bytes(parent, "little") if has_parent else None, size)


def from_bytes(whole: bytes) -> KvSegment:
    header = read_header(whole, len(whole))
    checksum, described = len(MAGIC), len(MAGIC) + _CHECKSUM
    if whole[checksum:described] != _checksum((memoryview(whole)[described:],)):
        raise DamagedSegment("the checksum differs")
    return KvSegment(header.hashes, header.parent, whole[_FIXED + NAME_BYTES * len(header.hashes) :])


def header_bytes(blocks: int) -> int:
    """How many bytes of a file hold the header of a segment of `blocks` blocks."""
    return _FIXED + NAME_BYTES * blocks


def _packed(name: int) -> bytes:
    return name.to_bytes(NAME_BYTES, "little")


def _checksum(parts: Sequence[bytes | memoryview]) -> bytes:
    digest = xxhash.xxh3_128()
    for part in parts:
        digest.update(part)
    return digest.digest()
