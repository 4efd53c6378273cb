"""Text as a terminal shows it when it is wrapped at words."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.utils import get_cwidth

from dynamo.cli.chat.markdown import MarkdownStream
from dynamo.cli.chat.wrap import WordWrap

SEQUENCE = re.compile(r"\x1b\[([0-9;]*)([A-Za-z])|(.)", re.DOTALL)


class Screen:
    """The part of a terminal that a chat uses: rows that wrap by themselves, erasing, and styles."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.cells: list[list[tuple[str, str]]] = [[]]
        self._column = 0
        self._style = ""

    def write(self, text: str) -> None:
        for number, command, character in SEQUENCE.findall(text):
            match command:
                case "":
                    self._put(character)
                case "G":
                    self._column = int(number) - 1
                case "K":
                    del self.cells[-1][self._column :]
                case "m":
                    self._style = "" if number in ("", "0") else f"{self._style};{number}".lstrip(";")

    def _put(self, character: str) -> None:
        width = get_cwidth(character) if character != "\n" else 0
        if character == "\n" or self._column + width > self.columns:
            self.cells.append([])
            self._column = 0
        if character != "\n":
            self.cells[-1] += [(character, self._style)] + [("", self._style)] * (width - 1)
            self._column += width

    def rows(self) -> list[str]:
        return ["".join(character for character, _ in row) for row in self.cells]

    def style_of(self, character: str) -> str:
        return next(style for row in self.cells for each, style in row if each == character)


def screen(*pieces: str, columns: int = 12) -> Screen:
    shown, stream = Screen(columns), MarkdownStream(lambda: columns)
    for piece in pieces:
        shown.write(stream.feed(piece))
    shown.write(stream.finish())
    return shown


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("The quick brown fox", ["The quick ", "brown fox"]),
        ("exactly twelve", ["exactly ", "twelve"]),
        ("123456789012 next", ["123456789012", "next"]),
        ("12345678901 2", ["12345678901 ", "2"]),
        ("one\n\ntwo", ["one", "", "two"]),
        ("123456789012\nnext", ["123456789012", "next"]),
        ("a supercalifragilistic word", ["a ", "supercalifra", "gilistic ", "word"]),
        ("你好世界你好世界", ["你好世界你好", "世界"]),
        ("ab 你好世界你好世界", ["ab 你好世界", "你好世界"]),
        ("- one two three four", ["• one two ", "  three four"]),
        ("> one two three", ["│ one two ", "│ three"]),
        ("```\na long line of code stays\n```\n", ["  a long lin", "e of code st", "ays", ""]),
    ],
)
def test_lines_are_broken_between_words(text: str, rows: list[str]) -> None:
    assert screen(text).rows() == rows
    assert screen(*text).rows() == rows


def test_a_word_keeps_its_style_on_the_next_row() -> None:
    shown = screen(*"plain some**BOLD** x")
    assert shown.rows() == ["plain ", "someBOLD x"]
    assert [shown.style_of(character) for character in "sBx"] == ["", "1", ""]


def test_combining_marks_take_no_column() -> None:
    assert screen("123 e\u0301e\u0301e\u0301e\u0301e\u0301e\u0301e\u0301e\u0301").rows()[1:] == []


WORD = st.text(st.sampled_from("abcxyz,.é"), min_size=1, max_size=12)


@given(st.lists(WORD, min_size=1, max_size=40), st.integers(12, 30))
def test_no_word_is_broken_that_fits_on_a_row(words: list[str], columns: int) -> None:
    shown = screen(" ".join(words), columns=columns)
    assert [word for row in shown.rows() for word in row.split()] == words
    assert all(len(row) <= columns for row in shown.rows())


@given(st.lists(WORD, min_size=1, max_size=30), st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_a_terminal_of_changing_width_loses_no_text(words: list[str], widths: list[int]) -> None:
    columns = widths[0]
    wrap = WordWrap(lambda: columns)
    written = ""
    for index, word in enumerate(words):
        columns = widths[index % len(widths)]
        written += wrap.feed(word + " ")
    kept = re.sub(r"[^ \n]*\x1b\[\d+G\x1b\[K\n(?:\x1b\[0m)?", "", written)
    assert "".join(kept.split()) == "".join(words)


def test_without_a_terminal_lines_stay_as_they_are() -> None:
    text = "a line that is longer than any row of the other tests"
    assert MarkdownStream().feed(text) == text
