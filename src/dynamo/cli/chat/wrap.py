"""Wraps text at words while it streams, on a terminal that can be resized at any time."""

from __future__ import annotations

import re
from collections.abc import Callable

from prompt_toolkit.utils import get_cwidth

_STYLE = re.compile(r"(\x1b\[[0-9;]*m)")
_RESET = "\x1b[0m"
_TAB = 8


class WordWrap:
    """`feed` returns what to write for each piece.

    A word is shown as it grows. Where it reaches the edge, it is erased and written again on the next row. A word that
    is longer than a row is left to the terminal.
    """

    def __init__(self, width: Callable[[], int]) -> None:
        """`width` returns the columns of the terminal, 0 if it has none."""
        self.prefix = ""
        """Begins each further row of the line, as indentation does; cleared at the end of the line."""
        self._width = width
        self._columns = 0
        self._column = 0
        self._style = ""
        self._word = ""
        self._word_at: int | None = 0
        """The column where the current word begins; None if it must stay where it is."""
        self._word_style = ""

    def feed(self, text: str) -> str:
        self._measure()
        if not self._columns:
            return text
        written: list[str] = []
        for index, part in enumerate(_STYLE.split(text)):
            written += [self._restyle(part)] if index % 2 else map(self._next, part)
        return "".join(written)

    def _measure(self) -> None:
        columns = self._width()
        if columns != self._columns:
            # The terminal has moved what is on the line: only what follows can be placed.
            self._columns = columns
            self._word_at = 0 if self._column == 0 else None
            self._column = self._column % columns if columns else 0

    def _restyle(self, sequence: str) -> str:
        self._style = "" if sequence == _RESET else self._style + sequence
        self._word += sequence
        return sequence

    def _next(self, character: str) -> str:
        if character == "\n":
            self.prefix = ""
            self._begin_word(0)
            return character
        if character in " \t":
            return self._space(character)
        width = get_cwidth(character)
        if width == 2:
            self._begin_word(self._column)  # Chinese and Japanese break between any two characters
        if self._column + width <= self._columns:
            self._column += width
            self._word += character
            return character
        return self._over_the_edge(character, width)

    def _space(self, character: str) -> str:
        width = _TAB - self._column % _TAB if character == "\t" else 1
        if self._column + width > self._columns:
            self._begin_word(self._columns)  # dropped: the next word begins a row
            return ""
        self._begin_word(self._column + width)
        return character

    def _over_the_edge(self, character: str, width: int) -> str:
        at, prefix = self._word_at, self.prefix
        start = get_cwidth(prefix)
        if at is None or at <= start or start >= self._columns // 2:
            self._column, self._word_at = width, None
            return character
        word, style = self._word, self._word_style
        erased = f"\x1b[{at + 1}G\x1b[K" if word else ""
        self._word += character
        self._word_at = start
        self._column = start + get_cwidth(_STYLE.sub("", self._word))
        again = f"{_RESET}{style}{word}" if word else ""
        return f"{erased}\n{prefix}{again}{character}"

    def _begin_word(self, column: int) -> None:
        self._column = self._word_at = column
        self._word, self._word_style = "", self._style
