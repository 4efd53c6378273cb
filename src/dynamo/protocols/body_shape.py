"""Limits on what a JSON body consists of, checked before it is decoded.

Decoding is one call, during which no other request has its turn. The time it takes depends less on the body's bytes
than on the values in them: a megabyte of base64 takes 1 ms, a megabyte of `[1],` 130 ms.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Generator, Iterable, Iterator
from typing import TypeVar

from msgspec import Struct

from dynamo.protocols.errors import InvalidRequest

SMALL = 16 * 1024
"""Bytes of a body that cannot take long, whatever it consists of."""
_STEP = 128 * 1024
"""Bytes looked at before other requests have their turn: about a millisecond."""
_LARGE = 1 << 20
"""Bytes of a body whose strings are worth a look: shorter ones are copied in a millisecond."""
_FEW_MARKS = 2048
_MAX_SLOW_TEXT = 4 << 20
"""Bytes of escapes, whitespace and text beyond ASCII: they take three times as long as base64."""
_MAX_TEXTS = 4 << 20
_MAX_STRINGS = 1 << 18
_MAX_SLOW_NUMBERS = 1000
_SLOW_NUMBER = re.compile(rb"[eE][-+]?[0-9]{3}|[0-9.]{32}")
"""Numbers that take the decoder microseconds instead of nanoseconds."""


def _all_but(kept: bytes) -> bytes:
    return bytes(set(range(256)) - set(kept))


_NO_MARKS = _all_but(b",:[{")
_NO_COMMAS = _all_but(b",")
_LETTERS = bytes(set(range(0x21, 0x7F)) - set(b'\\",:[{'))
_SAFE_END = re.compile(rb"[\x00-\xff]*[ !#-\[\]-~]{6}")
"""After six characters of ASCII no escape is unfinished: the longest, a surrogate's, has six."""
_SEARCHED = 256

T = TypeVar("T")


class TextSpan(Struct, frozen=True):
    """A part of a string in a body, which begins and ends between two characters."""

    start: int
    stop: int
    is_plain: bool
    """Every byte is a character: no escapes, nothing beyond ASCII."""


class BodyLimits(Struct, frozen=True):
    """Zero means no limit."""

    items: int = 500_000
    """Values in lists and objects, such as token ids."""
    fields: int = 65_536
    """Fields, lists and objects."""


async def in_turns(steps: Generator[None, None, T]) -> T:
    """Other requests have their turn between the steps."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)


def check_shape(body: bytes | bytearray, limits: BodyLimits) -> Generator[None, None, list[TextSpan]]:
    """Yields between steps of about a millisecond; raises InvalidRequest where a limit is exceeded.

    Returns most of the text of long strings. The first span of a string may begin in the middle of an escape.
    """
    spans: list[TextSpan] = []
    if len(body) <= SMALL:
        return spans
    if len(body) <= _LARGE:
        if len(body) > _STEP:
            yield
        if len(body.translate(None, _NO_MARKS)) <= _FEW_MARKS:
            return spans
    counted, strings, slow, stop, is_safe = _Counted(limits), _Strings(), 0, 0, True
    while stop < len(body):
        start, starts_safe = stop, is_safe
        stop, is_safe = _piece_end(body, start)
        piece = bytes(body[start:stop])
        others = piece.translate(None, _LETTERS)
        slow += len(others.translate(None, b'",:[{'))
        if slow > _MAX_SLOW_TEXT:
            raise _too_much("The request body", "bytes of escapes, whitespace and text beyond ASCII", _MAX_SLOW_TEXT)
        is_inside = strings.is_inside
        if is_inside and not others.translate(None, b" ,:[{"):
            joined = spans and spans[-1].is_plain and spans[-1].stop == start
            spans.append(TextSpan(spans.pop().start if joined else start, stop, True))
        else:
            outside, quotes = strings.outside(piece)
            counted.add(outside, quotes, "The request body")
            if is_inside and not quotes and starts_safe and is_safe:
                spans.append(TextSpan(start, stop, False))
        yield
    return spans


def _piece_end(body: bytes | bytearray, start: int) -> tuple[int, bool]:
    """Where the piece of a body that begins at `start` ends, and whether no escape and no character is cut in two."""
    end = min(start + _STEP, len(body))
    first = max(start, end - _SEARCHED)
    found = _SAFE_END.match(body, first, end)
    return (found.end(), True) if found else (end, False)


def check_texts(texts: Iterable[str], limits: BodyLimits, name: str) -> None:
    """As `check_shape`, for JSON that the strings of a body contain: all of `texts` together may be so large."""
    counted, size = _Counted(limits), 0
    for text in texts:
        size += len(text)
        if size > _MAX_TEXTS:
            raise _too_much(name, "characters", _MAX_TEXTS)
        for outside, quotes in _outside_strings(text.encode(errors="replace")):
            counted.add(outside, quotes, name)


class _Counted:
    def __init__(self, limits: BodyLimits) -> None:
        self._limits = limits
        self._items = self._fields = self._quotes = self._slow = 0

    def add(self, outside: bytes, quotes: int, name: str) -> None:
        """Count what stands outside of strings; raises InvalidRequest where a limit is exceeded."""
        limits, marks = self._limits, outside.translate(None, _NO_MARKS)
        commas = len(marks.translate(None, _NO_COMMAS))
        self._items += commas
        self._fields += len(marks) - commas
        self._quotes += quotes
        self._slow += len(_SLOW_NUMBER.findall(outside))
        if limits.items and self._items > limits.items:
            raise _too_much(name, "values in lists and objects", limits.items)
        if limits.fields and self._fields > limits.fields:
            raise _too_much(name, "fields, lists and objects", limits.fields)
        if self._quotes > 2 * _MAX_STRINGS:
            raise _too_much(name, "strings", _MAX_STRINGS)
        if self._slow > _MAX_SLOW_NUMBERS:
            raise _too_much(name, "numbers with large exponents or many digits", _MAX_SLOW_NUMBERS)


class _Strings:
    """Follows where strings begin and end: exact up to the first byte that is not JSON, where decoding ends."""

    def __init__(self) -> None:
        self._held = b""
        self._inside = 0

    @property
    def is_inside(self) -> bool:
        """The next byte belongs to a string, and not to an escape."""
        return bool(self._inside and not self._held)

    def outside(self, piece: bytes) -> tuple[bytes, int]:
        """What of the next bytes stands outside of strings, and the number of quotes."""
        piece = self._held + piece
        self._held = b"\\" if (len(piece) - len(piece.rstrip(b"\\"))) % 2 else b""
        if self._held:
            piece = piece[:-1]
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        outside = b"".join(parts[self._inside :: 2])
        self._inside ^= (len(parts) - 1) % 2
        return outside, len(parts) - 1


def _outside_strings(body: bytes) -> Iterator[tuple[bytes, int]]:
    strings = _Strings()
    for start in range(0, len(body), _STEP):
        yield strings.outside(body[start : start + _STEP])


def _too_much(name: str, what: str, limit: int) -> InvalidRequest:
    return InvalidRequest(f"{name} has too many {what}; at most {limit} are allowed.", code="body_too_complex")
