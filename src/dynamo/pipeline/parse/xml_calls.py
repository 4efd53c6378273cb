"""Calls written as tags, one per parameter, with untyped values."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from .events import ParsedSink
from .python_literal import json_string
from .source import WORD, NotACall, Reading, Source
from .values import json_value, types_of


class XmlCalls(Struct, frozen=True, kw_only=True):
    """`name_close` ends the function's name; without it the name ends at the first key or the end of the call."""

    open: tuple[tuple[str, ...], ...]
    close: tuple[str, ...] = ()
    bare: str = ""
    name_close: str = ""
    key: tuple[str, str]
    value: tuple[str, str]
    newline_padding: bool = False
    end: tuple[str, ...]

    def read(self, src: Source, sink: ParsedSink, bare: bool) -> Reading[None]:
        yield from src.skip_space()
        name = yield from src.take(WORD)
        if not name:
            raise NotACall
        yield from src.skip_space()
        if self.name_close:
            yield from src.expect(self.name_close)
        else:
            at = src.pos
            if not (yield from src.one_of((self.key[0], *self.end))):
                raise NotACall
            src.pos = at
        sink.start(name)
        src.drop()
        yield from self._parameters(src, sink, sink.schemas.get(name))

    def _parameters(self, src: Source, sink: ParsedSink, schema: dict[str, Any] | None) -> Reading[None]:
        lead = "{"
        while True:
            yield from src.skip_space()
            found = yield from src.one_of((self.key[0], *self.end))
            if found in self.end:
                sink.args("{}" if lead == "{" else "}")
                src.drop()
                return
            key = (yield from src.until(self.key[1])) if found else None
            if key is None:
                raise NotACall
            if self.value[0]:
                yield from src.skip_space()
                yield from src.expect(self.value[0])
            key = key.strip()
            start = src.pos
            value = yield from src.until(self.value[1])
            if value is None:
                # Left unclosed, so that a value that was cut off cannot be mistaken for a complete one.
                src.pos = len(src.buf)
                sink.args(f"{lead}{json_string(key)}: {json_string(self._unpadded(src.buf[start:]))[:-1]}")
                src.drop()
                return
            sink.args(f"{lead}{json_string(key)}: {json_value(self._unpadded(value), types_of(schema, key))}")
            lead = ", "
            src.drop()

    def _unpadded(self, value: str) -> str:
        return value.removeprefix("\n").removesuffix("\n") if self.newline_padding else value
