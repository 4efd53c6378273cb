"""Reads text and calls in turn, in the same way for every format but harmony."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from .events import ParsedSink, Text
from .source import NotACall, Reading, Source, marker_search


class Grammar(Protocol):
    """How calls of one format begin, are read and end."""

    @property
    def open(self) -> tuple[tuple[str, ...], ...]: ...
    @property
    def close(self) -> tuple[str, ...]: ...
    @property
    def bare_start(self) -> str: ...

    def read(self, src: Source, sink: ParsedSink, bare: bool) -> Reading[None]:
        """Read what follows the opening; raises NotACall as soon as it cannot be a call."""
        ...


class NoCalls(Struct, frozen=True):
    """The grammar of output without calls."""

    open: tuple[tuple[str, ...], ...] = ()
    close: tuple[str, ...] = ()
    bare_start: str = ""

    def read(self, src: Source, sink: ParsedSink, bare: bool) -> Reading[None]:
        raise NotACall


def read_content(src: Source, grammar: Grammar, sink: ParsedSink, ignored: tuple[str, ...] = ()) -> Reading[None]:
    """Text and calls up to the end of the output; markers in `ignored` are left out of the text."""
    markers = tuple(dict.fromkeys(opening[0] for opening in grammar.open))
    search = marker_search((*markers, *ignored))
    # Leading whitespace is held until it is followed by text; before a call it is meaningless and dropped.
    yield from src.skip_space()
    while ignored and (yield from src.one_of(ignored)):
        src.drop()
        yield from src.skip_space()
    at_start = True
    if grammar.bare_start and (yield from src.peek()) == grammar.bare_start:
        if (yield from _call(src, grammar, sink, bare=True)):
            at_start = False
        else:
            src.pos = 0
    while True:
        if at_start:
            yield from src.skip_space()
        found = search(src.buf, src.pos)
        at = found.start() if found else len(src.buf)
        if not at_start or at > src.pos:
            sink.text(src.buf[:at])
            src.pos = at
            src.drop()
            at_start = False
        if found and found[0] in ignored:
            src.buf = src.buf.replace(found[0], "", 1)
        elif found and found[0] in markers:
            if not (yield from _call(src, grammar, sink, bare=False)):
                length = src.buf.index(found[0]) + len(found[0])
                sink.text(src.buf[:length])
                src.pos = length
                src.drop()
            at_start = False
        elif src.ended:
            sink.text(src.buf)
            src.buf = ""
            return
        else:
            yield None if found or at_start else (search, Text)


def _call(src: Source, grammar: Grammar, sink: ParsedSink, bare: bool) -> Reading[bool]:
    """Read one call, or several in one block; returns False and consumes nothing if it is not a call."""
    before = sink.calls
    try:
        if not bare:
            yield from _opening(src, grammar)
        yield from grammar.read(src, sink, bare)
    except NotACall:
        src.pos = 0
        if sink.calls == before:
            return False
    for marker in grammar.close:
        at = src.pos
        yield from src.skip_space()
        if not (yield from src.one_of((marker,))):
            src.pos = at
    yield from src.skip_space()
    src.drop()
    return True


def _opening(src: Source, grammar: Grammar) -> Reading[None]:
    first = yield from src.one_of(tuple(opening[0] for opening in grammar.open))
    ways = [opening[1:] for opening in grammar.open if opening[0] == first]
    for marker in ways[0] if ways else ():
        yield from src.skip_space()
        yield from src.expect(marker)
