"""Writes to the terminal: answers as they stream, and the chat's own lines."""

from __future__ import annotations

import os
import sys

from dynamo.cli.chat.markdown import MarkdownStream, without_controls
from dynamo.cli.chat.wrap import WordWrap


class AnswerWriter:
    """Writes an answer: reasoning dimmed, the rest as Markdown."""

    def __init__(self) -> None:
        self._markdown = MarkdownStream(columns)
        self._reasoning = WordWrap(columns)
        self._thinking = False
        self._pieces: list[str] = []
        self._column = 0
        self._ended = False

    @property
    def answer(self) -> str:
        return "".join(self._pieces)

    def text(self, text: str) -> None:
        self._pieces.append(text)
        self._end_reasoning()
        self._write(self._markdown.feed(text))

    def reasoning(self, text: str) -> None:
        self._thinking = True
        # Each piece ends its own dimming, so that stopping an answer anywhere leaves the terminal undimmed.
        self._write(self._reasoning.feed(f"\x1b[2m{without_controls(text)}\x1b[0m"))

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            self._end_reasoning()
            self._write(self._markdown.finish())
            self._write("" if self._column == 0 else "\n")

    def _end_reasoning(self) -> None:
        if self._thinking:
            self._thinking = False
            self._write(self._reasoning.feed("\n\n"))

    def _write(self, text: str) -> None:
        if text:
            sys.stdout.write(text)
            sys.stdout.flush()
            self._column = 0 if text.endswith("\n") else 1


def columns() -> int:
    """The width of the terminal now; 0 without one."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):
        return 0


def say(text: str, *, indent: int = 0) -> None:
    """Write a line; its further rows begin with `indent` spaces."""
    wrap = WordWrap(columns)
    wrap.prefix = " " * indent
    sys.stdout.write(wrap.feed(text) + os.linesep)
    sys.stdout.flush()


def dim(text: str) -> None:
    say(f"\x1b[2m{text}\x1b[0m")
