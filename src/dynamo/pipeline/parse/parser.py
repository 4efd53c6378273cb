"""Builds the parser for a model's output formats, and feeds it text piece by piece."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any, TypeVar

from msgspec import structs

from . import formats
from .content import NoCalls, read_content
from .events import Event, ParsedSink, ReasoningText, Text
from .formats import CallForm, HarmonyFormat, ReasoningFormat, ToolFormat
from .gemma_calls import GemmaCalls
from .harmony import HarmonyReader
from .json_calls import JsonCalls, NamedCall
from .reasoning import ReasoningMarkers, read_reasoning
from .source import Bypass, Reading, Source, marker_search
from .xml_calls import XmlCalls

F = TypeVar("F")
_JSON = ("{", "[")


def tool_formats() -> list[str]:
    return sorted({*formats.TOOL_FORMATS, *formats.TOOL_ALIASES})


def reasoning_formats() -> list[str]:
    return sorted({*formats.REASONING_FORMATS, *formats.REASONING_ALIASES})


@cache
def skip_special_tokens(tools: str | None, reasoning: str | None) -> bool:
    """Whether output in these formats may be decoded without special tokens."""
    _tool_format(tools)
    _reasoning_format(reasoning)
    return (
        formats.TOOL_ALIASES.get(tools or "", tools) not in formats.SPECIAL_TOOL_MARKERS
        and formats.REASONING_ALIASES.get(reasoning or "", reasoning) not in formats.SPECIAL_REASONING_MARKERS
    )


def opens_reasoning(reasoning: str | None, prompt: str) -> bool:
    """Whether a prompt ends with the opening marker of this reasoning format, so that the output starts inside it."""
    form = _reasoning_format(reasoning)
    if form is None:
        return False
    endings = ("<|channel|>analysis<|message|>",) if isinstance(form, HarmonyFormat) else form.open
    return prompt.rstrip().endswith(endings)


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def make_parser(
    tools: str | None,
    reasoning: str | None,
    *,
    in_reasoning: bool = False,
    tool_names: Collection[str] | None = None,
    tool_schemas: Mapping[str, dict[str, Any]] | None = None,
    guided: bool = False,
    new_id: Callable[[], str] = new_call_id,
) -> OutputParser:
    """A parser for one output. `tool_schemas` maps each tool's name to the JSON schema of its parameters.

    `guided` says that guided decoding constrains the output.
    """
    sink = ParsedSink(new_id, tool_names, tool_schemas)
    guided_starts = _JSON if guided else ()
    return OutputParser(_tool_format(tools), _reasoning_format(reasoning), in_reasoning, sink, guided_starts)


def make_forced_parser(
    name: str | None,
    reasoning: str | None,
    tools: str | None = None,
    *,
    in_reasoning: bool = False,
    new_id: Callable[[], str] = new_call_id,
) -> OutputParser:
    """A parser for output that guided decoding constrains to a call of the tool `name`, or of any tool if None.

    Engines that can follow it use the form of the model's own calls if there is one (`call_form`), others plain JSON.
    """
    own = _tool_format(tools) if call_form(tools) else None
    assert own is None or isinstance(own, JsonCalls)
    form: ToolFormat
    if name is not None:
        form = NamedCall(name=name, own=own)
    else:
        form = structs.replace(own, bare_start="[") if own else formats.GUIDED_CALLS
    guided_starts = (*_JSON, *(opening[0] for opening in own.open)) if own else _JSON
    sink = ParsedSink(new_id, None, None)
    return OutputParser(form, _reasoning_format(reasoning), in_reasoning, sink, guided_starts, forced=True)


def call_form(tools: str | None) -> CallForm | None:
    """How output in this tool call format is to be forced; None if only as plain JSON."""
    return formats.CALL_FORMS.get(formats.TOOL_ALIASES.get(tools or "", tools or ""))


class OutputParser:
    """Turns the text of one output into events, in order; see the package for the rules."""

    def __init__(
        self,
        tools: ToolFormat | None,
        reasoning: ReasoningFormat | None,
        in_reasoning: bool,
        sink: ParsedSink,
        guided_starts: tuple[str, ...] = (),
        forced: bool = False,
    ) -> None:
        self._forced = forced
        self._sink = sink
        self._content = _content_stage(tools, reasoning, in_reasoning, sink)
        self._reasoning = _reasoning_stage(tools, reasoning, in_reasoning, guided_starts, sink, self._to_content)
        self._bypass: Bypass | None = None
        self._finished = False

    @property
    def saw_tool_call(self) -> bool:
        return self._sink.calls > 0

    @property
    def is_over(self) -> bool:
        """All further text is content, so that no parser is needed for it."""
        return self._reasoning is None and self._content is None

    def feed(self, text: str) -> list[Event]:
        bypass = self._bypass
        if bypass is not None and bypass[0](text) is None and text:
            return [bypass[1](text)]
        if self._finished:
            raise ValueError("this output has already ended")
        if not text:
            return []
        if self._reasoning is None:
            self._to_content(text)
        else:
            self._reasoning.push(text)
            self._leave_reasoning_if_over()
        self._bypass = self._next_bypass()
        return self._sink.take()

    def finish(self, *, cut: bool = False) -> list[Event]:
        """The output has ended: return what was held back.

        Half of a call or of a marker is left out if the limit cut it, and after a call.
        """
        if self._finished:
            return []
        self._finished = True
        self._bypass = None
        calls = self._sink.calls
        if self._reasoning is not None:
            self._reasoning.end()
            if cut:
                self._sink.calls = calls
                return [event for event in self._sink.take() if isinstance(event, ReasoningText)]
            self._leave_reasoning_if_over()
        if self._content is not None:
            self._content.end()
        held = self._sink.take()
        # Text is only held back while it may be the beginning of a call or of a marker.
        half_a_call = cut or self._forced or calls
        return [event for event in held if not isinstance(event, Text)] if half_a_call else held

    def _to_content(self, text: str) -> None:
        if self._content is None:
            self._sink.text(text)
        elif text:
            self._content.push(text)

    def _leave_reasoning_if_over(self) -> None:
        if self._reasoning is not None and self._reasoning.over:
            rest = self._reasoning.source.buf
            self._reasoning = None
            self._to_content(rest)

    def _next_bypass(self) -> Bypass | None:
        if self._reasoning is None:
            return (marker_search(()), Text) if self._content is None else self._content.bypass
        bypass = self._reasoning.bypass
        if bypass is not None and bypass[1] is not ReasoningText and self._content is not None:
            return None
        return bypass


class _Stage:
    """A grammar that reads from its own source."""

    def __init__(self, source: Source, reading: Reading[None]) -> None:
        self.source = source
        self.bypass: Bypass | None = None
        self.over = False
        self._reading = reading

    def push(self, text: str) -> None:
        self.source.push(text)
        self._advance()

    def end(self) -> None:
        self.source.ended = True
        self._advance()

    def _advance(self) -> None:
        try:
            self.bypass = next(self._reading)
        except StopIteration:
            self.bypass = None
            self.over = True


def _content_stage(
    tools: ToolFormat | None, reasoning: ReasoningFormat | None, in_reasoning: bool, sink: ParsedSink
) -> _Stage | None:
    ignored: tuple[str, ...] = reasoning.ignored if isinstance(reasoning, ReasoningMarkers) else ()
    src = Source()
    if tools is None:
        return _Stage(src, read_content(src, NoCalls(), sink, ignored)) if ignored else None
    if isinstance(tools, HarmonyFormat):
        inside = in_reasoning and not isinstance(reasoning, ReasoningMarkers)
        return _Stage(src, HarmonyReader(sink, sink.text, calls=True).read(src, inside))
    if isinstance(tools, XmlCalls | GemmaCalls):
        ignored = tuple(dict.fromkeys((*tools.ignored, *ignored)))
    return _Stage(src, read_content(src, tools, sink, ignored))


def _reasoning_stage(
    tools: ToolFormat | None,
    reasoning: ReasoningFormat | None,
    in_reasoning: bool,
    guided_starts: tuple[str, ...],
    sink: ParsedSink,
    text: Callable[[str], None],
) -> _Stage | None:
    src = Source()
    if isinstance(reasoning, ReasoningMarkers):
        inside = in_reasoning or reasoning.starts_inside
        return _Stage(src, read_reasoning(src, reasoning, inside, guided_starts, sink.reasoning))
    if reasoning is None or isinstance(tools, HarmonyFormat):
        return None
    return _Stage(src, HarmonyReader(sink, text, calls=False).read(src, in_reasoning))


def _tool_format(name: str | None) -> ToolFormat | None:
    return _look_up("tool call", name, formats.TOOL_FORMATS, formats.TOOL_ALIASES)


def _reasoning_format(name: str | None) -> ReasoningFormat | None:
    return _look_up("reasoning", name, formats.REASONING_FORMATS, formats.REASONING_ALIASES)


def _look_up(what: str, name: str | None, table: Mapping[str, F], aliases: Mapping[str, str]) -> F | None:
    if name is None:
        return None
    found = table.get(aliases.get(name, name))
    if found is None:
        raise ValueError(f"unknown {what} format {name!r}; valid: {', '.join(sorted({*table, *aliases}))}")
    return found
