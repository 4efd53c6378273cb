"""Calls written as JSON: objects with name and arguments, alone or in an array, or arguments after a header."""

from __future__ import annotations

import re

import msgspec
from msgspec import Struct

from .events import ParsedSink
from .source import WORD, NotACall, Reading, Source, Span
from .values import parsed_json

_SCALAR = re.compile(r"[\w+\-.]*+")
_CALL_KEYS = frozenset({"type", "id", "name", "arguments", "parameters"})
_NUMBERED_ID = re.compile(r"(?:functions\.)?(?P<name>.+?)(?P<number>:\d+)?", re.DOTALL)


class HeaderStep(Struct, frozen=True):
    """One element of a header: a literal, then optionally a word that is the call's `name` or `id`."""

    literal: str = ""
    word: str = ""
    optional: bool = False


class JsonCalls(Struct, frozen=True, kw_only=True):
    """`open` lists the ways a call begins, each a sequence of markers; `close` lists what may follow it, in this order.

    `bare_start` is the character that begins a call without a marker, at the start of the output only. `empty_end` is
    the closing marker that, right after a header, means the call has no arguments.
    """

    open: tuple[tuple[str, ...], ...]
    close: tuple[str, ...] = ()
    bare_start: str = ""
    objects: bool = True
    arrays: bool = True
    header: tuple[HeaderStep, ...] = ()
    empty_end: str = ""
    separator: str = ""

    def read(self, src: Source, sink: ParsedSink, bare: bool) -> Reading[None]:
        yield from src.skip_space()
        char = yield from src.peek()
        if char == "{" and self.objects:
            yield from self._objects(src, sink, bare)
        elif char == "[" and self.arrays:
            yield from self._array(src, sink)
        elif self.header:
            yield from self._headed(src, sink)
        else:
            raise NotACall

    def _objects(self, src: Source, sink: ParsedSink, bare: bool) -> Reading[None]:
        yield from _object(src, sink, bare)
        while self.separator:
            yield from src.skip_space()
            yield from src.expect(self.separator)
            yield from src.skip_space()
            if (yield from src.peek()) != "{":
                raise NotACall
            yield from _object(src, sink, bare)

    def _array(self, src: Source, sink: ParsedSink) -> Reading[None]:
        src.pos += 1
        while True:
            yield from src.skip_space()
            if (yield from src.peek()) != "{":
                raise NotACall
            yield from _object(src, sink, bare=False)
            yield from src.skip_space()
            if (yield from src.one_of(("]", ","))) != ",":
                break
        src.drop()

    def _headed(self, src: Source, sink: ParsedSink) -> Reading[None]:
        words = {"name": "", "id": ""}
        for step in self.header:
            yield from src.skip_space()
            if step.literal and not (yield from src.one_of((step.literal,))):
                if step.optional:
                    continue
                raise NotACall
            if step.word:
                words[step.word] = yield from src.take(WORD)
                if not words[step.word]:
                    raise NotACall
        name, call_id = words["name"], words["id"]
        if not name and (found := _NUMBERED_ID.fullmatch(call_id)):
            name = found["name"]
            if not found["number"]:  # a name alone would be the same for every call
                call_id = ""
        yield from src.skip_space()
        if (yield from src.peek()) == "{":
            sink.start(name, call_id)
            yield from stream_object(src, sink)
            return
        at = src.pos
        if not self.empty_end:
            raise NotACall
        yield from src.expect(self.empty_end)
        src.pos = at
        sink.start(name, call_id)
        sink.args("{}")
        src.drop()


class NamedCall(Struct, frozen=True, kw_only=True):
    """A call whose name is known beforehand: the output is its arguments only, or a call in the `own` format."""

    name: str
    own: JsonCalls | None = None
    bare_start: str = "{"

    @property
    def open(self) -> tuple[tuple[str, ...], ...]:
        return self.own.open if self.own else ()

    @property
    def close(self) -> tuple[str, ...]:
        return self.own.close if self.own else ()

    def read(self, src: Source, sink: ParsedSink, bare: bool) -> Reading[None]:
        if self.own and not bare:
            yield from self.own.read(src, sink, bare)
            return
        sink.start(self.name)
        yield from stream_object(src, sink)


def stream_object(src: Source, sink: ParsedSink) -> Reading[None]:
    """Pass on the arguments of a started call as they arrive."""
    span = Span()
    while True:
        end = span.scan(src.buf, src.pos)
        sink.args(src.buf[src.pos : end])
        src.pos = end
        src.drop()
        if span.done:
            return
        if src.ended:
            sink.args(src.buf)
            src.buf = ""
        if span.broken or src.ended:
            raise NotACall
        yield None


def _object(src: Source, sink: ParsedSink, bare: bool) -> Reading[None]:
    """One call. A bare object with any key that a call does not have is text."""
    name = call_id = arguments = None
    started = False
    src.pos += 1
    first = True
    while True:
        yield from src.skip_space()
        if (yield from src.one_of(("}",))):
            break
        if not first:
            yield from src.expect(",")
            yield from src.skip_space()
        first = False
        key = yield from _string(src)
        yield from src.skip_space()
        yield from src.expect(":")
        yield from src.skip_space()
        if bare and not started and key not in _CALL_KEYS:
            raise NotACall
        if key == "name" and not started:
            name = yield from _string(src)
            if not name or (bare and sink.rules_out(name)):
                raise NotACall
        elif key in ("arguments", "parameters") and not started:
            if name and (yield from src.peek()) == "{":
                sink.start(name, call_id)
                started = True
                yield from stream_object(src, sink)
            else:
                arguments = _arguments((yield from read_json(src)))
        else:
            value = yield from read_json(src)
            if key == "id" and value.startswith('"'):
                call_id = _decoded(value)
        if name and arguments and not started:
            sink.start(name, call_id)
            sink.args(arguments)
            started = True
        if started:
            src.drop()
    if not started:
        if not name or (bare and not sink.offers(name)):
            raise NotACall
        sink.start(name, call_id)
        sink.args("{}")
    src.drop()


def read_json(src: Source) -> Reading[str]:
    """One JSON value, verbatim; only strings and brackets are checked."""
    start = src.pos
    char = yield from src.peek()
    if char and char in '{["':
        span = Span()
        while True:
            src.pos = span.scan(src.buf, src.pos)
            if span.done:
                return src.buf[start : src.pos]
            if span.broken or src.ended:
                raise NotACall
            yield None
    scalar = yield from src.take(_SCALAR)
    if not scalar:
        raise NotACall
    return scalar


def _string(src: Source) -> Reading[str]:
    if (yield from src.peek()) != '"':
        raise NotACall
    return _decoded((yield from read_json(src)))


def _decoded(raw: str) -> str:
    try:
        return msgspec.json.decode(raw, type=str)
    except (msgspec.MsgspecError, ValueError):
        raise NotACall from None


def _arguments(raw: str) -> str:
    """The arguments as an object: some models write null for no arguments, or put the object into a string."""
    if raw.startswith('"'):
        raw = _decoded(raw).strip()
        if raw and not isinstance(parsed_json(raw), dict):
            raise NotACall
    if raw in ("null", ""):
        return "{}"
    if not raw.startswith("{"):
        raise NotACall
    return raw
