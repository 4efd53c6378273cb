"""Calls written as elements: each argument is an element with its own name, and nested values are nested elements."""

from __future__ import annotations

from typing import TypeAlias, Union

from msgspec import Struct

from .events import ParsedSink
from .json_text import MAX_DEPTH, Members, json_string
from .source import NotACall, Reading, Source
from .values import items_of, json_value, property_of, stream_string, types_of

_ITEM = "item"
_Children: TypeAlias = list[tuple[str, Union[str, "_Children"]]]
_Content: TypeAlias = str | _Children


class ElementCalls(Struct, frozen=True, kw_only=True):
    """`prefix` stands before every tag: text without it is never a tag. `repeat` begins a further call."""

    open: tuple[tuple[str, ...], ...]
    close: tuple[str, ...] = ()
    bare_start: str = ""
    prefix: str
    repeat: str
    name_close: str
    end: str

    def read(self, src: Source, sink: ParsedSink, bare: bool) -> Reading[None]:
        while True:
            name = yield from src.label(self.name_close)
            sink.start(name)
            src.drop()
            yield from self._arguments(src, sink, sink.schemas.get(name))
            yield from src.skip_space()
            if not (yield from src.one_of((self.repeat,))):
                return

    def _arguments(self, src: Source, sink: ParsedSink, schema: object) -> Reading[None]:
        members = Members(sink)
        while True:
            yield from src.skip_space()
            yield from src.expect(self.prefix)
            tag = yield from self._tag(src)
            if tag == self.end:
                members.close()
                src.drop()
                return
            if tag.startswith("/"):
                raise NotACall
            members.key(tag)
            src.drop()
            if not (yield from self._value(src, sink, tag, property_of(schema, tag))):
                return

    def _value(self, src: Source, sink: ParsedSink, name: str, schema: object) -> Reading[bool]:
        """The content of one argument; returns False if the output ends inside it, and then leaves it unclosed."""
        if types_of(schema) == {"string"}:
            if not (yield from stream_string(src, sink, (self.prefix,))):
                return False
            if (yield from self._tag(src)) != f"/{name}":
                raise NotACall
        else:
            content = yield from self._content(src, name, 0)
            if content is None:
                sink.args(json_string(src.buf)[:-1])
                src.pos = len(src.buf)
                src.drop()
                return False
            sink.args(_json(content, schema))
        src.drop()
        return True

    def _content(self, src: Source, name: str, depth: int) -> Reading[_Content | None]:
        """The text of an element or the elements in it; None if the output ends first."""
        children: _Children = []
        text = ""
        while True:
            piece = yield from src.until(self.prefix)
            if piece is None:
                return None
            text += piece
            tag = yield from self._tag(src)
            if children and text.strip():
                raise NotACall
            if tag == f"/{name}":
                return children or text
            if tag.startswith("/") or depth == MAX_DEPTH or text.strip():
                raise NotACall
            child = yield from self._content(src, tag, depth + 1)
            if child is None:
                return None
            children.append((tag, child))

    def _tag(self, src: Source) -> Reading[str]:
        yield from src.skip_space()
        yield from src.expect("<")
        return (yield from src.label(">"))


def _json(content: _Content, schema: object) -> str:
    """The value as JSON text. An empty element is an empty array, object or string, as the schema says."""
    types = types_of(schema)
    if isinstance(content, str):
        if not content.strip() and types and types <= {"array", "object", "null"}:
            return "[]" if "array" in types else "{}"
        return json_value(content, types)
    named = all(name == _ITEM for name, _ in content)
    if "array" in types if ("array" in types) != ("object" in types) else named:
        return f"[{', '.join(_json(child, items_of(schema)) for _, child in content)}]"
    members = {name: _json(child, property_of(schema, name)) for name, child in content}
    return f"{{{', '.join(f'{json_string(name)}: {value}' for name, value in members.items())}}}"
