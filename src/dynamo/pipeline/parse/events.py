"""The events a parser produces, and the sink that collects them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from msgspec import Struct


class Text(Struct, frozen=True, gc=False):
    text: str


class ReasoningText(Struct, frozen=True, gc=False):
    text: str


class ToolStart(Struct, frozen=True, gc=False):
    index: int
    id: str
    name: str


class ToolArgs(Struct, frozen=True, gc=False):
    """A piece of the JSON arguments of call `index`."""

    index: int
    fragment: str


Event = Text | ReasoningText | ToolStart | ToolArgs


class ParsedSink:
    """Collects events in order and knows which tools the request offered."""

    def __init__(
        self,
        new_id: Callable[[], str],
        tool_names: Collection[str] | None,
        tool_schemas: Mapping[str, dict[str, Any]] | None,
    ) -> None:
        self.events: list[Event] = []
        self.calls = 0
        self.schemas = tool_schemas or {}
        self._names = None if tool_names is None else frozenset(tool_names)
        self._new_id = new_id

    def take(self) -> list[Event]:
        events, self.events = self.events, []
        return events

    def text(self, text: str) -> None:
        if text:
            self.events.append(Text(text))

    def reasoning(self, text: str) -> None:
        if text:
            self.events.append(ReasoningText(text))

    def start(self, name: str, call_id: str | None = None) -> None:
        self.events.append(ToolStart(self.calls, call_id or self._new_id(), name))
        self.calls += 1

    def args(self, fragment: str) -> None:
        if not fragment:
            return
        last = self.events[-1] if self.events else None
        if isinstance(last, ToolArgs) and last.index == self.calls - 1:
            self.events[-1] = ToolArgs(last.index, last.fragment + fragment)
        else:
            self.events.append(ToolArgs(self.calls - 1, fragment))

    def offers(self, name: str) -> bool:
        """Whether the request is known to offer this tool."""
        return self._names is not None and name in self._names

    def rules_out(self, name: str) -> bool:
        """Whether the request is known not to offer this tool."""
        return self._names is not None and name not in self._names
