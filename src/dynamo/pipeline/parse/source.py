"""Reads text that arrives in pieces as if it were complete.

Grammars are generators that yield whenever they need text that has not arrived, so they read top to bottom and do not
depend on where the text was cut. They yield a `Bypass` if text without a marker may bypass them, else None.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from functools import lru_cache
from typing import TypeAlias, TypeVar

from .events import ReasoningText, Text

Bypass: TypeAlias = tuple[Callable[[str], "re.Match[str] | None"], type[Text] | type[ReasoningText]]
"""A search for markers, and the event that text without any becomes."""
T = TypeVar("T")
Reading: TypeAlias = Generator[Bypass | None, None, T]

SPACE = re.compile(r"\s*+")
WORD = re.compile(r"[\w.:/-]*+")
_LONGEST_LABEL = 512


class NotACall(Exception):
    """The text since the last `drop` is not, or no longer, a call."""


class Source:
    """A cursor over the undecided text; `drop` discards the text before the cursor."""

    __slots__ = ("buf", "ended", "pos")

    def __init__(self) -> None:
        self.buf = ""
        self.pos = 0
        self.ended = False

    def push(self, text: str) -> None:
        self.buf += text

    def drop(self) -> None:
        self.buf = self.buf[self.pos :]
        self.pos = 0

    def peek(self) -> Reading[str]:
        """The next character, or "" at the end of the output."""
        while self.pos >= len(self.buf):
            if self.ended:
                return ""
            yield None
        return self.buf[self.pos]

    def take(self, pattern: re.Pattern[str]) -> Reading[str]:
        """The longest match of a possessive character class at the cursor."""
        start = self.pos
        while True:
            found = pattern.match(self.buf, self.pos)
            self.pos = found.end() if found else self.pos
            if self.pos < len(self.buf) or self.ended:
                return self.buf[start : self.pos]
            yield None

    def skip_space(self) -> Reading[None]:
        yield from self.take(SPACE)

    def one_of(self, literals: tuple[str, ...]) -> Reading[str]:
        """Consume and return the literal at the cursor; "" if there is none."""
        while True:
            rest = len(self.buf) - self.pos
            undecided = False
            for literal in literals:
                if self.buf.startswith(literal, self.pos):
                    self.pos += len(literal)
                    return literal
                undecided = undecided or (rest < len(literal) and literal.startswith(self.buf[self.pos :]))
            if self.ended or not undecided:
                return ""
            yield None

    def expect(self, literal: str) -> Reading[None]:
        if not (yield from self.one_of((literal,))):
            raise NotACall

    def until(self, literal: str) -> Reading[str | None]:
        """Consume the text up to and including the literal, and return the text; None if the output ends first."""
        start = self.pos
        seen = start
        while (at := self.buf.find(literal, seen)) < 0:
            if self.ended:
                return None
            seen = max(start, len(self.buf) - len(literal) + 1)
            yield None
        self.pos = at + len(literal)
        return self.buf[start:at]

    def label(self, end: str) -> Reading[str]:
        """Consume the text up to and including `end`, and return the text: a name, a key or a tag.

        It is not a call if the text is empty or longer than any such label, so that prose is not held back.
        """
        start = self.pos
        limit = start + _LONGEST_LABEL + len(end)
        while (at := self.buf.find(end, start, limit)) < 0:
            if self.ended or len(self.buf) >= limit:
                raise NotACall
            yield None
        if at == start:
            raise NotACall
        self.pos = at + len(end)
        return self.buf[start:at]


def pass_on(
    src: Source,
    markers: tuple[str, ...],
    emit: Callable[[str], None],
    kind: type[Text] | type[ReasoningText] | None = None,
) -> Reading[str]:
    """Emit text as it arrives, up to the first of `markers`; returns that, "" if the output ends first.

    The marker is left in `src`. With `kind`, text may bypass the grammar meanwhile and becomes events of that kind.
    """
    search = marker_search(markers)
    while True:
        found = search(src.buf, src.pos)
        marker = found[0] if found and found[0] in markers else ""
        at = len(src.buf) if found is None or (src.ended and not marker) else found.start()
        emit(src.buf[src.pos : at])
        src.pos = at
        src.drop()
        if marker or src.ended:
            return marker
        yield None if found or kind is None else (search, kind)


@lru_cache(maxsize=64)
def marker_search(literals: tuple[str, ...]) -> Callable[..., re.Match[str] | None]:
    """A search for the first literal, or for a prefix of one at the end of the text."""
    parts = [re.escape(literal) for literal in literals]
    for literal in literals:
        prefix = ""
        for char in reversed(literal[1:-1]):
            prefix = f"(?:{re.escape(char)}{prefix})?"
        if len(literal) > 1:
            parts.append(rf"{re.escape(literal[0])}{prefix}\Z")
    return re.compile("|".join(parts)).search if parts else _no_match


def _no_match(text: str, pos: int = 0) -> re.Match[str] | None:
    return None


_STRING_BODY = {
    '"': re.compile(r'(?:[^"\\]++|\\.)*+', re.DOTALL),
    "'": re.compile(r"(?:[^'\\]++|\\.)*+", re.DOTALL),
}
_NESTED = re.compile(r"[\s\w+\-.,:]*+")
_SCALAR = re.compile(r"[\s\w+\-.]*+")
_CLOSER = {"{": "}", "[": "]", "(": ")"}


class Span:
    """Finds the end of one value in text that arrives in pieces, by tracking only strings and brackets.

    A JSON value (object, array or string) ends with its last character; with `stops` (Python arguments) the value ends
    before a stop character outside all brackets.
    """

    __slots__ = ("_closers", "_openers", "_quote", "_quotes", "_stops", "broken", "done")

    def __init__(self, stops: str = "") -> None:
        self.done = False
        self.broken = False
        self._closers: list[str] = []
        self._quote = ""
        self._stops = stops
        self._quotes = "\"'" if stops else '"'
        self._openers = "{[(" if stops else "{["

    def scan(self, buf: str, pos: int) -> int:
        """Continue from `pos`; returns the position up to which the text belongs to the value."""
        while pos < len(buf):
            if self._quote:
                found = _STRING_BODY[self._quote].match(buf, pos)
                pos = found.end() if found else pos
                if pos == len(buf) or buf[pos] == "\\":  # a backslash whose second half has not arrived
                    return pos
                pos += 1
                self._quote = ""
            else:
                found = (_NESTED if self._closers else _SCALAR).match(buf, pos)
                pos = found.end() if found else pos
                if pos == len(buf):
                    return pos
                char = buf[pos]
                if not self._closers and char in self._stops:
                    self.done = True
                    return pos
                if char in self._quotes:
                    self._quote = char
                elif char in self._openers:
                    self._closers.append(_CLOSER[char])
                elif self._closers and char == self._closers[-1]:
                    self._closers.pop()
                else:
                    self.broken = True
                    return pos
                pos += 1
            if not self._stops and not self._quote and not self._closers:
                self.done = True
                return pos
        return pos
