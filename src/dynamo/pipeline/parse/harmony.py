"""Harmony, the format of gpt-oss: each message names a channel, which tells reasoning, calls and text apart."""

from __future__ import annotations

import re
from collections.abc import Callable

from .events import ParsedSink, ReasoningText, Text
from .json_calls import stream_object
from .source import NotACall, Reading, Source, marker_search, pass_on

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_OUTSIDE = (_START, _CHANNEL, *_ENDS)
_IN_HEADER = (_MESSAGE, _START, *_ENDS)
_LONGEST_HEADER = 512
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_CHANNEL_NAME = re.compile(r"<\|channel\|>\s*(\w+)")
_NOT_SPACE = re.compile(r"[^\s<]*+")


class HarmonyReader:
    """Reads one output: the analysis channel is reasoning, a message to a function is a call, all the rest is text.

    Without `calls`, a message to a function is text too, header included.
    """

    def __init__(self, sink: ParsedSink, text: Callable[[str], None], calls: bool) -> None:
        self._sink = sink
        self._text = text
        self._calls = calls

    def read(self, src: Source, inside: bool) -> Reading[None]:
        opening = 0
        if inside:
            yield from self._body(src, ReasoningText)
        else:
            opening = yield from _first_opening(src)
        while True:
            opening = opening or len((yield from src.one_of((_START, _CHANNEL))))
            if opening:
                yield from self._message(src, opening)
            elif src.ended and not src.buf:
                return
            else:
                yield from self._body(src, Text)
            opening = 0

    def _message(self, src: Source, opening: int) -> Reading[None]:
        length = yield from _header(src)
        if not length:
            return self._pass_as_text(src, opening)
        header = src.buf[:length]
        recipient = _RECIPIENT.search(header)
        name = self._function(recipient[1]) if recipient else None
        if name is None:
            channel = _CHANNEL_NAME.search(header)
            src.drop()
            yield from self._body(src, ReasoningText if channel and channel[1] == "analysis" else Text)
        elif not self._calls or not (yield from self._call(src, name)):
            self._pass_as_text(src, length)
            yield from self._body(src, Text)

    def _function(self, recipient: str) -> str | None:
        name = recipient.removeprefix("functions.")
        return name if name and (name != recipient or self._sink.offers(name)) else None

    def _pass_as_text(self, src: Source, length: int) -> None:
        self._text(src.buf[:length])
        src.pos = length
        src.drop()

    def _body(self, src: Source, kind: type[Text] | type[ReasoningText]) -> Reading[None]:
        """Text of one kind up to the next marker, which is consumed only if it ends a message."""
        emit = self._text if kind is Text else self._sink.reasoning
        yield from pass_on(src, _OUTSIDE, emit, kind)
        yield from _end(src)

    def _call(self, src: Source, name: str) -> Reading[bool]:
        yield from src.skip_space()
        if (yield from src.peek()) == "{":
            self._sink.start(name)
            try:
                yield from stream_object(src, self._sink)
            except NotACall:  # the rest follows as text
                src.pos = 0
            yield from src.skip_space()
            yield from _end(src)
            return True
        at = src.pos
        if not (yield from src.one_of(_OUTSIDE)) and src.pos < len(src.buf):
            return False
        src.pos = at
        self._sink.start(name)
        self._sink.args("{}")
        yield from _end(src)
        return True


def _end(src: Source) -> Reading[None]:
    if (yield from src.one_of(_ENDS)):
        yield from src.skip_space()
    src.drop()


def _first_opening(src: Source) -> Reading[int]:
    """The length of the part of a header that begins the output.

    The prompt ends with the role, so the output may begin inside a header: ` to=functions.f<|channel|>…`.
    """
    yield from src.skip_space()
    if (yield from src.one_of((_START, _CHANNEL))):
        return src.pos
    if (yield from src.one_of(("to=",))):
        yield from src.take(_NOT_SPACE)
        yield from src.skip_space()
        at = src.pos
        if (yield from src.one_of((_CHANNEL, _MESSAGE))):
            src.pos = at
            return at
    src.pos = 0
    return 0


def _header(src: Source) -> Reading[int]:
    """The length of the header at the beginning of the text; 0 if there is none."""
    search = marker_search(_IN_HEADER)
    while True:
        found = search(src.buf, src.pos)
        at = found.start() if found else len(src.buf)
        if at > _LONGEST_HEADER or src.ended or (found and found[0] in _IN_HEADER):
            break
        yield None
    if not found or found[0] != _MESSAGE or at > _LONGEST_HEADER:
        return 0
    src.pos = found.end()
    return src.pos
