"""Calls written as tags, one per parameter."""

from __future__ import annotations

import re

from msgspec import Struct

from .events import ParsedSink
from .json_calls import stream_object
from .json_text import Members, json_string
from .source import WORD, NotACall, Reading, Source
from .values import json_value, property_of, stream_string, types_of

_STRING = frozenset({"string"})
_NOT_STRING = frozenset({"object", "array", "number", "integer", "boolean", "null"})
_ESCAPED = (("&quot;", '"'), ("&amp;", "&"))


class XmlCalls(Struct, frozen=True, kw_only=True):
    """`name_close` ends the function's name; without it the name ends at the first key or the end of the call.

    `repeat` begins a further call in the same block. `name_tag` and `key_tag` are for tags with attributes: they match
    the text of a tag, with the groups `name`, `key` and `type`. `escapes` says that a name or key may contain `&quot;`
    and `&amp;`. Values are typed by their tag, else by the tool's schema. `json_object` encloses arguments that are one
    JSON object.
    """

    open: tuple[tuple[str, ...], ...]
    close: tuple[str, ...] = ()
    bare_start: str = ""
    repeat: str = ""
    name_close: str = ""
    name_tag: re.Pattern[str] | None = None
    key: tuple[str, str]
    key_tag: re.Pattern[str] | None = None
    escapes: bool = False
    value: tuple[str, str]
    newline_padding: bool = False
    json_object: tuple[str, str] | None = None
    end: tuple[str, ...]
    ignored: tuple[str, ...] = ()

    def read(self, src: Source, sink: ParsedSink, bare: bool) -> Reading[None]:
        while True:
            name = yield from self._name(src)
            sink.start(name)
            src.drop()
            yield from self._arguments(src, sink, sink.schemas.get(name))
            yield from src.skip_space()
            if not self.repeat or not (yield from src.one_of((self.repeat,))):
                return

    def _name(self, src: Source) -> Reading[str]:
        if self.name_tag:
            found = self.name_tag.fullmatch((yield from src.label(self.name_close)))
            if not found or not found["name"]:
                raise NotACall
            return self._unescaped(found["name"])
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
        return name

    def _arguments(self, src: Source, sink: ParsedSink, schema: object) -> Reading[None]:
        members = Members(sink)
        while True:
            yield from src.skip_space()
            if self.json_object and members.empty and (yield from src.one_of((self.json_object[0],))):
                yield from self._object(src, sink, self.json_object[1])
                return
            found = yield from src.one_of((self.key[0], *self.end))
            if found in self.end:
                members.close()
                src.drop()
                return
            if not found:
                raise NotACall
            key, types = yield from self._key(src, schema)
            if self.value[0]:
                yield from src.skip_space()
                yield from src.expect(self.value[0])
            members.key(key)
            src.drop()
            if not (yield from self._value(src, sink, types)):
                return

    def _key(self, src: Source, schema: object) -> Reading[tuple[str, frozenset[str]]]:
        key = yield from src.label(self.key[1])
        if not self.key_tag:
            key = key.strip()
            return key, types_of(property_of(schema, key))
        found = self.key_tag.fullmatch(key)
        if not found:
            raise NotACall
        key, declared = self._unescaped(found["key"]), found.groupdict().get("type")
        if declared:
            return key, _STRING if declared in ("string", "true") else _NOT_STRING
        return key, types_of(property_of(schema, key))

    def _value(self, src: Source, sink: ParsedSink, types: frozenset[str]) -> Reading[bool]:
        """One value; returns False if the output ends inside it, and then leaves it unclosed."""
        if self.newline_padding:
            yield from src.one_of(("\n",))
        if types == _STRING:
            closers = (f"\n{self.value[1]}", self.value[1]) if self.newline_padding else (self.value[1],)
            return bool((yield from stream_string(src, sink, closers)))
        start = src.pos
        value = yield from src.until(self.value[1])
        if value is None:
            src.pos = len(src.buf)
            sink.args(json_string(self._unpadded(src.buf[start:]))[:-1])
        else:
            sink.args(json_value(self._unpadded(value), types))
        src.drop()
        return value is not None

    def _object(self, src: Source, sink: ParsedSink, closer: str) -> Reading[None]:
        yield from src.skip_space()
        if (yield from src.peek()) != "{":
            raise NotACall
        yield from stream_object(src, sink)
        for literal in (closer, *self.end):
            yield from src.skip_space()
            yield from src.expect(literal)
        src.drop()

    def _unpadded(self, value: str) -> str:
        return value.removesuffix("\n") if self.newline_padding else value

    def _unescaped(self, value: str) -> str:
        for escape, char in _ESCAPED if self.escapes else ():
            value = value.replace(escape, char)
        return value
