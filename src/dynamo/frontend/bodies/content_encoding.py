"""Unpacking compressed request bodies, up to a limit."""

from __future__ import annotations

import asyncio
import zlib

from dynamo.protocols.errors import HttpError

STEP = 1 << 18
"""Bytes read or unpacked before other requests have their turn: a millisecond."""
GZIP = 16 + zlib.MAX_WBITS


class TooLong(Exception):
    """The unpacked body exceeds the limit."""


async def unpack(body: bytes | bytearray, encoding: str, limit: int) -> bytearray:
    """Undo the `Content-Encoding`. At most one byte more than `limit` is ever unpacked."""
    unpacker = zlib.decompressobj(_window(body, encoding.strip().lower()))
    unpacked, rest, read = bytearray(), b"", 0
    try:
        while not unpacker.eof:
            if not rest:
                # Not the whole body at once: each call copies what it leaves.
                rest, read = bytes(body[read : read + STEP]), read + STEP
            step = unpacker.decompress(rest, min(STEP, limit + 1 - len(unpacked)))
            rest = unpacker.unconsumed_tail
            if not step and not rest and read >= len(body):
                break
            unpacked += step
            if len(unpacked) > limit:
                raise TooLong
            await asyncio.sleep(0)
    except zlib.error:
        raise HttpError(400, f"the request's body is not valid {encoding}") from None
    if unpacker.unused_data or (unpacker.eof and read < len(body)):
        # Each further member copies what follows it: many small ones would take quadratic time.
        raise HttpError(400, f"the request's body goes on after the end of its {encoding} data")
    if not unpacker.eof:
        raise HttpError(400, f"the request's body ends in the middle of its {encoding} data")
    return unpacked


def _window(body: bytes | bytearray, encoding: str) -> int:
    if encoding in ("gzip", "x-gzip"):
        return GZIP
    if encoding == "deflate":
        # Some clients leave out the zlib header, whose first byte has these bits.
        has_header = body[:1] and body[0] & 0xF == zlib.DEFLATED
        return zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS
    raise HttpError(415, f"Content-Encoding must be gzip or deflate, not {encoding[:64]}")
