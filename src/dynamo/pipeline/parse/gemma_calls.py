"""Calls as Gemma writes them: `call:name{key:value,…}`, with unquoted keys and a marker in place of quotes."""

from __future__ import annotations

import re

from msgspec import Struct

from .events import ParsedSink
from .json_calls import read_json
from .json_text import MAX_DEPTH, Members
from .source import NotACall, Reading, Source
from .values import items_of, json_value, parsed_json, property_of, stream_string, types_of

_SCALAR = re.compile(r"[^,{}\[\]<]*+")


class GemmaCalls(Struct, frozen=True, kw_only=True):
    open: tuple[tuple[str, ...], ...]
    close: tuple[str, ...] = ()
    bare_start: str = ""
    quote: str
    ignored: tuple[str, ...] = ()

    def read(self, src: Source, sink: ParsedSink, bare: bool) -> Reading[None]:
        yield from src.skip_space()
        name = (yield from src.label("{")).strip()
        if not name:
            raise NotACall
        sink.start(name)
        src.drop()
        yield from self._object(src, sink, sink.schemas.get(name), 0)

    def _object(self, src: Source, sink: ParsedSink, schema: object, depth: int) -> Reading[None]:
        members = Members(sink)
        while (yield from _continues(src, members, "}")):
            key = yield from self._key(src)
            members.key(key)
            src.drop()
            yield from self._value(src, sink, property_of(schema, key), depth)

    def _array(self, src: Source, sink: ParsedSink, schema: object, depth: int) -> Reading[None]:
        members = Members(sink, "[]")
        while (yield from _continues(src, members, "]")):
            members.item()
            src.drop()
            yield from self._value(src, sink, schema, depth)

    def _key(self, src: Source) -> Reading[str]:
        yield from src.skip_space()
        if (yield from src.one_of((self.quote,))):
            key = yield from src.label(self.quote)
            yield from src.skip_space()
            yield from src.expect(":")
            return key
        key = (yield from src.label(":")).strip()
        quoted = parsed_json(key)
        return quoted if isinstance(quoted, str) else key

    def _value(self, src: Source, sink: ParsedSink, schema: object, depth: int) -> Reading[None]:
        yield from src.skip_space()
        if (yield from src.one_of((self.quote,))):
            if not (yield from stream_string(src, sink, (self.quote,))):
                raise NotACall
            return
        char = yield from src.peek()
        if char and char in "{[":
            if depth == MAX_DEPTH:
                raise NotACall
            src.pos += 1
            if char == "{":
                yield from self._object(src, sink, schema, depth + 1)
            else:
                yield from self._array(src, sink, items_of(schema), depth + 1)
        elif char == '"':
            sink.args((yield from read_json(src)))
            src.drop()
        else:
            scalar = yield from src.take(_SCALAR)
            if not scalar.strip() or not (yield from src.peek()):
                raise NotACall
            sink.args(json_value(scalar.strip(), types_of(schema)))
            src.drop()


def _continues(src: Source, members: Members, closer: str) -> Reading[bool]:
    """Whether another member follows; reads the comma before it, or the closing bracket after the last one."""
    yield from src.skip_space()
    if (yield from src.one_of((closer,))):
        members.close()
        src.drop()
        return False
    if not members.empty:
        yield from src.expect(",")
    return True
