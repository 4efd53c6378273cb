"""Decodes bodies with long strings, such as images in base64, in steps between which other requests have their turn.

A megabyte of a string takes the decoder a millisecond, in one call. So the decoder sees long strings shortened, and
what was left out is put back afterwards.
"""

from __future__ import annotations

import re
import secrets
from bisect import bisect_right
from collections.abc import Generator, Iterable, Iterator
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr

from dynamo.protocols.body import BodyDecoder
from dynamo.protocols.body_shape import TextSpan
from dynamo.protocols.errors import InvalidRequest

T = TypeVar("T")

_string = msgspec.json.Decoder(str)

_KEPT = 128 * 1024
"""Bytes of a long string that stay, at least: more than any limit of a string's length, and than a message quotes."""
_LONGEST_NAME = 1 << 20
_STEP = 1 << 20
"""Characters copied before other requests have their turn: about a millisecond."""
_VALUES = 4096
"""Values looked at before other requests have their turn."""


def decode_in_steps(
    decoder: BodyDecoder[T], body: bytes | bytearray, spans: list[TextSpan], ignored: list[str] | None = None
) -> Generator[None, None, T]:
    """As `decoder.decode`; `spans` are from `check_shape`."""
    shortened = ShortenedBody(body, spans)
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

    def __init__(self, body: bytes | bytearray, spans: list[TextSpan]) -> None:
        self.gaps = _gaps(spans)
        self._body = body
        # No client can guess the marks that stand for the gaps.
        secret = secrets.token_hex(16)
        self._mark = re.compile(f"<{secret}-([0-9a-f]{{8}})>")
        self._left_out, self._resumed = [0], []
        kept, at = [], 0
        for number, gap in enumerate(self.gaps):
            start, stop, mark = gap[0].start, gap[-1].stop, f"<{secret}-{number:08x}>".encode()
            kept += [body[at:start], mark]
            at = stop
            self._left_out.append(self._left_out[-1] + stop - start - len(mark))
            self._resumed.append(stop - self._left_out[-1])
        self.json = b"".join([*kept, body[at:]]) if kept else body

    def offset(self, at: int) -> int:
        """Where a byte of `json` stands in the body."""
        return at + self._left_out[bisect_right(self._resumed, at)]

    def restore(self, decoded: list[Any]) -> Generator[None, None, bool]:
        """Put back what was left out of the strings in what `json` was decoded to.

        False where a name is long or an escape is wrong: the decoder must have the whole body.
        """
        missing, seen = set(range(len(self.gaps))), 0
        holders: list[Any] = [decoded]
        while holders and missing:
            holder = holders.pop()
            for key, inner in _entries(holder):
                seen += 1
                if not seen % _VALUES:
                    yield
                if isinstance(key, str) and len(key) > _KEPT:
                    self._reject_endless(key)
                    return False
                if isinstance(inner, dict | list | Struct):
                    holders.append(inner)
                elif isinstance(inner, str) and len(inner) > _KEPT:
                    parts = self._mark.split(inner)
                    if len(parts) > 1:
                        missing.difference_update(int(number, 16) for number in parts[1::2])
                        whole = yield from self._joined(parts)
                        if whole is None:
                            return False
                        _put(holder, key, whole)
        return (yield from self._are_valid(missing))

    def _reject_endless(self, name: str) -> None:
        """Decoding such a name would hold up others: nobody means it."""
        gaps = [self.gaps[int(number, 16)] for number in self._mark.findall(name)]
        if sum(span.stop - span.start for gap in gaps for span in gap) > _LONGEST_NAME:
            message = f"The name of a field is longer than {_LONGEST_NAME:,} bytes."
            raise InvalidRequest(message, code="body_too_complex")

    def _are_valid(self, numbers: Iterable[int]) -> Generator[None, None, bool]:
        """Whether the escapes in these gaps are: text that was ignored must be JSON too."""
        for number in numbers:
            for piece in self._pieces([span for span in self.gaps[number] if not span.is_plain]):
                if piece is None:
                    return False
                yield
        return True

    def _joined(self, parts: list[str]) -> Generator[None, None, str | None]:
        """`parts` are text and numbers of gaps in turn."""
        text = parts[0]
        for number, after in zip(parts[1::2], parts[2::2], strict=True):
            for piece in self._pieces(self.gaps[int(number, 16)]):
                if piece is None:
                    return None
                # CPython appends to a string that nobody else holds without copying it: joining would be one long step.
                text += piece
                yield
            text += after
        return text

    def _pieces(self, gap: list[TextSpan]) -> Iterator[str | None]:
        for span in gap:
            if span.is_plain:
                for at in range(span.start, span.stop, _STEP):
                    yield self._body[at : min(at + _STEP, span.stop)].decode("ascii")
            else:
                try:
                    yield _string.decode(b'"' + bytes(self._body[span.start : span.stop]) + b'"')
                except (msgspec.DecodeError, UnicodeDecodeError):
                    yield None


def _gaps(spans: list[TextSpan]) -> list[list[TextSpan]]:
    """What is left out: spans that follow one another, without the beginning of the first."""
    gaps: list[list[TextSpan]] = []
    stop = -1
    for span in spans:
        if span.start != stop:
            gaps.append([])
            begin = span.start + _KEPT
            if span.is_plain and begin < span.stop:
                gaps[-1].append(TextSpan(begin, span.stop, True))
        else:
            gaps[-1].append(span)
        stop = span.stop
    return [gap for gap in gaps if gap]


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
