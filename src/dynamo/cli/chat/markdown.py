"""Markdown for a terminal, written while it streams and never redrawn.

The output is plain text with colours, so the terminal can be resized, scrolled or copied from at any time. Lines are
wrapped at words, except in code. It does not depend on how the text is cut into pieces.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from dynamo.cli.chat.wrap import WordWrap

_BOLD, _DIM, _ITALIC, _CODE = "1", "2", "3", "36"
_RESET = "\x1b[0m"
_FENCE = re.compile(r" {0,3}(```+|~~~+)\s*([\w+#.-]*)")
_BULLET = re.compile(r"( *)[-*+] $")
_HEADING = re.compile(r" {0,3}#{1,6} $")
_QUOTE = re.compile(r" {0,3}>$")
_UNDECIDED = re.compile(r" *(?:[-*+]|#{1,6}|`{1,2}|~{1,2}|(?:```|~~~).*)?$")
# A model must not move the cursor, ring the bell or recolour the screen.
_CONTROL = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


def without_controls(text: str) -> str:
    """The text without control characters."""
    return text.translate(_CONTROL)


class MarkdownStream:
    """`feed` returns what to write for each piece, `finish` what was still held back."""

    def __init__(self, width: Callable[[], int] = lambda: 0) -> None:
        """`width` returns the columns of the terminal; 0 leaves lines as long as they are."""
        self._wrap = WordWrap(width)
        self._start: str | None = ""
        """The start of a line whose kind is not certain yet; None once it is."""
        self._fence: tuple[str, str] | None = None
        self._line = ""
        self._stars = 0
        self._before = " "
        self._styles: list[str] = []

    def feed(self, text: str) -> str:
        return "".join(map(self._next, without_controls(text)))

    def finish(self) -> str:
        if self._fence:
            line, self._line = self._line, ""
            return self._code_line(line) if line and not self._closes(line) else ""
        rest = self._inline_all(self._start or "")
        self._start = None
        rest += self._resolve_stars(" ")
        return self._wrap.feed(rest + self._off())

    def _next(self, character: str) -> str:
        if self._fence:
            return self._in_code(character)
        return self._wrap.feed(self._in_prose(character))

    def _in_prose(self, character: str) -> str:
        if self._start is None:
            return self._inline(character)
        self._start += character
        return self._decide(self._start)

    def _decide(self, start: str) -> str:
        """Decide the kind of a line as soon as its start determines it."""
        if start.endswith("\n"):
            fence = _FENCE.match(start)
            if fence:
                self._fence, self._start, self._line = (fence[1], fence[2]), None, ""
                return ""
            self._start = None
            return self._inline_all(start)
        if bullet := _BULLET.match(start):
            self._start = None
            self._wrap.prefix = f"{bullet[1]}  "
            return f"{bullet[1]}• "
        if _HEADING.match(start):
            self._start = None
            return self._toggle(_BOLD)
        if _QUOTE.match(start):
            self._start = None
            self._wrap.prefix = "│ "
            return self._toggle(_DIM) + "│"
        if _UNDECIDED.match(start):
            return ""
        self._start = None
        return self._inline_all(start)

    def _inline_all(self, text: str) -> str:
        return "".join(map(self._inline, text))

    def _inline(self, character: str) -> str:
        if character == "*" and _CODE not in self._styles:
            self._stars += 1
            return ""
        written = self._resolve_stars(character)
        if character == "`":
            self._before = character
            return written + self._toggle(_CODE)
        if character == "\n":
            written += self._off()
            self._start, self._before = "", " "
            return written + "\n"
        self._before = character
        return written + character

    def _resolve_stars(self, after: str) -> str:
        """Stars next to a word are emphasis; those between spaces, or more than three, are literal."""
        stars, self._stars = self._stars, 0
        if not stars:
            return ""
        styles = {1: [_ITALIC], 2: [_BOLD], 3: [_BOLD, _ITALIC]}.get(stars, [])
        closes = bool(styles) and all(style in self._styles for style in styles) and not self._before.isspace()
        opens = bool(styles) and not any(style in self._styles for style in styles) and not after.isspace()
        if opens and (stars > 1 or not self._before.isalnum()):
            return "".join(map(self._toggle, styles))
        if closes:
            return "".join(map(self._toggle, styles))
        self._before = "*"
        return "*" * stars

    def _toggle(self, style: str) -> str:
        if style in self._styles:
            self._styles.remove(style)
        else:
            self._styles.append(style)
        return _RESET + "".join(f"\x1b[{active}m" for active in self._styles)

    def _off(self) -> str:
        if not self._styles:
            return ""
        self._styles.clear()
        return _RESET

    def _in_code(self, character: str) -> str:
        if character != "\n":
            self._line += character
            return ""
        assert self._fence
        line, self._line = self._line, ""
        if self._closes(line):
            self._fence, self._start, self._before = None, "", " "
            return ""
        return self._code_line(line) + "\n"

    def _closes(self, line: str) -> bool:
        assert self._fence
        mark = self._fence[0]
        return line.strip().startswith(mark) and not line.strip().strip(mark[0])

    def _code_line(self, line: str) -> str:
        """Colour one line of code. A token that spans lines, such as a long string, may be coloured wrong."""
        assert self._fence
        from pygments import highlight
        from pygments.formatters import TerminalFormatter
        from pygments.lexers import get_lexer_by_name
        from pygments.util import ClassNotFound

        try:
            lexer = get_lexer_by_name(self._fence[1] or "text", stripnl=False, ensurenl=False)
        except ClassNotFound:
            return f"  {line}"
        return "  " + str(highlight(line, lexer, TerminalFormatter())).rstrip("\n")
