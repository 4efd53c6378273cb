"""Writes arguments as JSON text, piece by piece."""

from __future__ import annotations

import json
import re

from .events import ParsedSink

MAX_DEPTH = 64
"""How deep a value that is not written as JSON may be nested: it is read by recursion."""
_SURROGATE = re.compile("[\ud800-\udfff]")


def json_string(text: str) -> str:
    return f'"{json_escaped(text)}"'


def json_escaped(text: str) -> str:
    """The text as it stands inside a JSON string; each character is escaped by itself, so pieces may be joined."""
    escaped = json.dumps(text, ensure_ascii=False)[1:-1]
    if escaped.isascii():
        return escaped
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", escaped)


class Members:
    """The members of one object (or, with the brackets "[]", array) of a call's arguments."""

    def __init__(self, sink: ParsedSink, brackets: str = "{}") -> None:
        self._sink = sink
        self._brackets = brackets
        self.empty = True

    def key(self, name: str) -> None:
        """Begin a member of an object."""
        self.item()
        self._sink.args(f"{json_string(name)}: ")

    def item(self) -> None:
        """Begin an item of an array."""
        self._sink.args(self._brackets[0] if self.empty else ", ")
        self.empty = False

    def close(self) -> None:
        self._sink.args(self._brackets if self.empty else self._brackets[1])
