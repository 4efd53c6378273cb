"""Calls written as a Python list: `[f(a=1), g(b="x")]`."""

from __future__ import annotations

import re

from msgspec import Struct

from .events import ParsedSink
from .json_text import Members
from .python_literal import literal_to_json
from .source import NotACall, Reading, Source, Span

_NAME = re.compile(r"[\w.]*+")
_IDENTIFIER = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")


class PythonicCalls(Struct, frozen=True, kw_only=True):
    open: tuple[tuple[str, ...], ...]
    close: tuple[str, ...] = ()
    bare_start: str = "["

    def read(self, src: Source, sink: ParsedSink, bare: bool) -> Reading[None]:
        yield from src.skip_space()
        yield from src.expect("[")
        while True:
            yield from _call(src, sink, bare)
            yield from src.skip_space()
            if (yield from src.one_of(("]", ","))) != ",":
                break
        src.drop()


def _call(src: Source, sink: ParsedSink, bare: bool) -> Reading[None]:
    """One call, recognised once its first argument is complete: up to there `[f(x) …` may still be prose."""
    name = yield from _identifier(src)
    if bare and sink.rules_out(name):
        raise NotACall
    yield from src.expect("(")
    members = Members(sink)
    while True:
        yield from src.skip_space()
        if (yield from src.one_of((")",))):
            break
        key = yield from _identifier(src)
        yield from src.expect("=")
        value = yield from _argument(src)
        if members.empty:
            sink.start(name)
        members.key(key)
        sink.args(value)
        yield from src.one_of((",",))
        src.drop()
    if members.empty:
        sink.start(name)
    members.close()
    src.drop()


def _identifier(src: Source) -> Reading[str]:
    yield from src.skip_space()
    name = yield from src.take(_NAME)
    if not _IDENTIFIER.fullmatch(name):
        raise NotACall
    yield from src.skip_space()
    return name


def _argument(src: Source) -> Reading[str]:
    start = src.pos
    span = Span(stops=",)")
    while True:
        src.pos = span.scan(src.buf, src.pos)
        if span.done:
            break
        if span.broken or src.ended:
            raise NotACall
        yield None
    try:
        return literal_to_json(src.buf[start : src.pos])
    except ValueError:
        raise NotACall from None
