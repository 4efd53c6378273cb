"""How a worker sends the files that its model card names: in chunks, asked for by checksum and never by path."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

CHUNK_BYTES = 256 * 1024
"""In every chunk but the last. Few enough that the token streams on the same connection are not held up."""


class FileRequest(Struct, frozen=True):
    checksum: str
    offset: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = 0


class FileChunk(Struct, frozen=True):
    """Bytes of the file from the offset on, and the size of the whole file."""

    size: Annotated[int, Meta(ge=0)]
    data: bytes
