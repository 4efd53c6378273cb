"""Reads the metadata of a GGUF file and the types of its tensors, not what is in them."""

from __future__ import annotations

import hashlib
import mmap
import struct
from array import array
from pathlib import Path
from typing import Any

from msgspec import Struct

from dynamo.protocols.errors import ModelError

_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_HEADER = struct.Struct("<4sIQQ")
COUNT_OF_TENSORS = 8
"""Where in the file their number stands."""
_COUNT = struct.Struct("<Q")
_KIND = struct.Struct("<I")
_DEEPEST_ARRAY = 4
_MOST_DIMENSIONS = 4
_TENSOR = struct.Struct("<IQ")
_PLAIN_TYPES = {0, 1, 28, 30}
"""F32, F16, F64 and BF16; all others are quantised or integers."""


class Gguf(Struct, frozen=True):
    """`checksum` covers the metadata only, the first `size` bytes: the rest may be hundreds of gigabytes."""

    metadata: dict[str, Any]
    checksum: str
    size: int


def read_gguf(path: Path) -> Gguf:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            cursor = _ByteReader(data)
            metadata = cursor.metadata()
            with memoryview(data) as view, view[: cursor.at] as head:
                return Gguf(metadata, hashlib.sha256(head).hexdigest(), cursor.at)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error
    except _Malformed as error:
        raise ModelError(f"{path} is not a GGUF file this program can read: {error}") from error
    except ValueError as error:  # an empty file cannot be mapped
        raise ModelError(f"{path} is not a GGUF file this program can read: it is empty") from error


def is_quantised(path: Path) -> bool:
    """Whether a tensor of the file is neither F32, F16, BF16 nor F64; raises ModelError."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return not _ByteReader(data).tensor_types() <= _PLAIN_TYPES
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error
    except (_Malformed, ValueError) as error:
        raise ModelError(f"{path} is not a GGUF file this program can read: {error}") from error


class _Malformed(Exception):
    pass


class _ByteReader:
    """Reads forward through untrusted bytes: every length is checked against what is left."""

    def __init__(self, data: mmap.mmap) -> None:
        self.at = 0
        self._data = data
        self._size = len(data)

    def metadata(self) -> dict[str, Any]:
        return self._head()[0]

    def tensor_types(self) -> set[int]:
        """The numbers that GGML gives to the types of the tensors; their descriptions follow the metadata."""
        types = set()
        for _ in range(self._head()[1]):
            self._string()
            dimensions = self._unpack(_KIND)[0]
            if dimensions > _MOST_DIMENSIONS:
                raise _Malformed(f"a tensor of {dimensions} dimensions at byte {self.at}")
            self._take(dimensions * _COUNT.size)
            types.add(self._unpack(_TENSOR)[0])
        return types

    def _head(self) -> tuple[dict[str, Any], int]:
        """The metadata, and how many tensors there are."""
        magic, version, tensors, count = self._unpack(_HEADER)
        if magic != b"GGUF":
            raise _Malformed("it does not start with GGUF")
        if version & 0xFFFF == 0 and version:
            raise _Malformed("it is big-endian")
        if version not in (2, 3):
            raise _Malformed(f"version {version}, known are 2 and 3")
        metadata: dict[str, Any] = {}
        for _ in range(count):
            key = self._string()
            metadata[key] = self._value(self._unpack(_KIND)[0])
        return metadata, tensors

    def _value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(depth + 1)
        return self._unpack(self._scalar(kind))[0]

    def _array(self, depth: int) -> list[Any]:
        if depth > _DEEPEST_ARRAY:
            raise _Malformed(f"arrays nested more than {_DEEPEST_ARRAY} deep")
        kind = self._unpack(_KIND)[0]
        count = self._unpack(_COUNT)[0]
        if kind in (_STRING, _ARRAY):
            self._need(count * _COUNT.size)
            return [self._value(kind, depth) for _ in range(count)]
        scalar = self._scalar(kind)
        if kind == 7:
            return [byte != 0 for byte in self._take(count)]
        code = scalar.format[1:]
        values = array(code, self._take(count * scalar.size))
        if struct.pack("=H", 1) != struct.pack("<H", 1):
            values.byteswap()
        return values.tolist()

    def _string(self) -> str:
        length = self._unpack(_COUNT)[0]
        try:
            return self._take(length).decode()
        except UnicodeDecodeError as error:
            raise _Malformed(f"a string at byte {self.at} is not UTF-8") from error

    def _scalar(self, kind: int) -> struct.Struct:
        if kind not in _SCALARS:
            raise _Malformed(f"unknown type of value {kind} at byte {self.at}")
        return _SCALARS[kind]

    def _unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        self._need(layout.size)
        values = layout.unpack_from(self._data, self.at)
        self.at += layout.size
        return values

    def _take(self, size: int) -> bytes:
        self._need(size)
        taken = self._data[self.at : self.at + size]
        self.at += size
        return taken

    def _need(self, size: int) -> None:
        if size > self._size - self.at:
            raise _Malformed(f"it ends at byte {self._size}, in the middle of its metadata")
