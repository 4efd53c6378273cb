"""Decodes bodies with long strings, such as images in base64, in steps between which other requests have their turn.

A megabyte of a string takes the decoder a millisecond, in one call. So the decoder sees long strings shortened, and
what was left out is put back afterwards.
"""

from __future__ import annotations

import re
import secrets
from bisect import bisect_right
from collections.abc import Generator, Iterator
from itertools import accumulate
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import force_setattr

from dynamo.protocols.body import BodyDecoder
from dynamo.protocols.body_shape import Span

T = TypeVar("T")

_KEPT = 128 * 1024
"""Bytes of each plain part that stay: more than any limit of a string's length, and more than a message quotes."""
_STEP = 1 << 20
"""Characters copied before other requests have their turn: about a millisecond."""
_VALUES = 4096
"""Values looked at before other requests have their turn."""


def decode_in_steps(
    decoder: BodyDecoder[T], body: bytes | bytearray, plain: list[Span], ignored: list[str] | None = None
) -> Generator[None, None, T]:
    """As `decoder.decode`. `plain` are parts of strings in which every byte is a character (`check_shape`)."""
    shortened = ShortenedBody(body, plain)
    if not shortened.gaps:
        return decoder.decode(body, ignored)
    value = decoder.decode(shortened.json, ignored, shortened.offset)
    yield
    whole = [value]
    if not (yield from shortened.restore(whole)):
        if ignored:
            ignored.clear()
        return decoder.decode(body, ignored)
    return whole[0]


class ShortenedBody:
    """A body without the middle of its long strings."""

    def __init__(self, body: bytes | bytearray, plain: list[Span]) -> None:
        self.gaps = [(start + _KEPT, stop) for start, stop in plain if stop - start > 2 * _KEPT]
        self._body = body
        # No client can guess the marks that stand for the gaps.
        secret = secrets.token_hex(16)
        self._mark = re.compile(f"<{secret}-([0-9a-f]{{8}})>")
        marks = [f"<{secret}-{number:08x}>".encode() for number in range(len(self.gaps))]
        kept, at = [], 0
        for (start, stop), mark in zip(self.gaps, marks, strict=True):
            kept += [body[at:start], mark]
            at = stop
        self.json: bytes | bytearray = b"".join([*kept, body[at:]]) if kept else body
        left_out = [stop - start - len(mark) for (start, stop), mark in zip(self.gaps, marks, strict=True)]
        self._left_out = [0, *accumulate(left_out)]
        self._resumed = [stop - after for (_, stop), after in zip(self.gaps, self._left_out[1:], strict=True)]

    def offset(self, at: int) -> int:
        """Where a byte of `json` stands in the body."""
        return at + self._left_out[bisect_right(self._resumed, at)]

    def restore(self, decoded: list[Any]) -> Generator[None, None, bool]:
        """Put back what was left out of the strings in what `json` was decoded to; false where a name is too long."""
        missing, seen = len(self.gaps), 0
        holders: list[Any] = [decoded]
        while holders and missing:
            holder = holders.pop()
            for key, inner in _entries(holder):
                seen += 1
                if not seen % _VALUES:
                    yield
                if isinstance(key, str) and len(key) > _KEPT:
                    return False
                if isinstance(inner, dict | list | Struct):
                    holders.append(inner)
                elif isinstance(inner, str) and len(inner) > _KEPT:
                    parts = self._mark.split(inner)
                    if len(parts) > 1:
                        missing -= len(parts) // 2
                        whole = yield from self._joined(parts)
                        _put(holder, key, whole)
        return True

    def _joined(self, parts: list[str]) -> Generator[None, None, str]:
        """`parts` are text and numbers of gaps in turn."""
        text = parts[0]
        for number, after in zip(parts[1::2], parts[2::2], strict=True):
            start, stop = self.gaps[int(number, 16)]
            for at in range(start, stop, _STEP):
                # CPython appends to a string that nobody else holds without copying it: joining would be one long step.
                text += self._body[at : min(at + _STEP, stop)].decode("ascii")
                yield
            text += after
        return text


def _entries(holder: Any) -> Iterator[tuple[Any, Any]]:
    match holder:
        case list():
            return iter(enumerate(holder))
        case dict():
            return iter(holder.items())
        case _:
            return ((name, getattr(holder, name)) for name in holder.__struct_fields__)


def _put(holder: Any, key: Any, text: str) -> None:
    if isinstance(holder, Struct):
        force_setattr(holder, key, text)
    else:
        holder[key] = text
