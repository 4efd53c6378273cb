"""`guided_decoding` as engines take it. JSON is on one line, with the listed properties only.

llguidance, the library that follows grammars for llamacpp and in mistral.rs, by default allows any amount of whitespace
between JSON tokens, and any further properties in an object. A small model then writes spaces until its limit.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from dynamo.protocols.errors import InvalidArgument

_ONE_LINE = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
"""At most one space, where models have learned to write one; the separators are regular expressions."""

_COMBINING = frozenset(("allOf", "anyOf", "oneOf", "not", "if", "$ref", "patternProperties", "minProperties"))
"""Keywords beside which an object's own properties are not all that it may need."""
_ONE = ("items", "additionalProperties", "contains")
_MANY = ("anyOf", "oneOf", "prefixItems")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")


class Calls(Struct, frozen=True):
    """The form in which a model writes tool calls: `json` is the schema of one."""

    json: dict[str, Any]
    begin: str
    end: str
    separator: str
    limit: int

    def grammar(self) -> str:
        """From one call to `limit`, in Lark's syntax."""
        call = f"{_quoted(self.begin)} json {_quoted(self.end)}"
        more = f" ({_quoted(self.separator)} call){{0,{self.limit - 1}}}" if self.limit > 1 else ""
        return f"start: call{more}\ncall: {call}\njson: %json {json_grammar(self.json)}\n"

    def structural_tag(self, *, counts: bool = False, short_whitespace: bool = False) -> str:
        """For xgrammar: from one call to `limit` if it counts repeats, else any number unless the limit is one."""
        limited = {"max_whitespace_cnt": 1} if short_whitespace else {}
        content = {"type": "json_schema", "json_schema": without_control_characters(self.json), **limited}
        call = {"type": "tag", "begin": self.begin, "content": content, "end": self.end}
        form: dict[str, Any] = {
            "type": "tags_with_separator",
            "tags": [call],
            "separator": self.separator,
            "at_least_one": True,
            "stop_after_first": self.limit == 1,
        }
        if self.limit > 1 and counts:
            separator = {"type": "const_string", "value": self.separator}
            further = {"type": "sequence", "elements": [separator, call] if self.separator else [call]}
            more = {"type": "repeat", "min": 0, "max": self.limit - 1, "content": further}
            form = {"type": "sequence", "elements": [call, more]}
        return _encoded({"type": "structural_tag", "format": form})


def tool_calls(raw: Any) -> Calls:
    """`guided_decoding.tool_calls`; raises InvalidArgument if it is malformed."""
    try:
        return msgspec.convert(raw, Calls)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"guided_decoding.tool_calls: {error}") from None


def json_schema(raw: Any) -> Any:
    """`guided_decoding.json`, which may be text; raises InvalidArgument if that is not JSON."""
    try:
        return msgspec.json.decode(raw) if isinstance(raw, str) else raw
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"guided_decoding.json: {error}") from None


def choice_regex(choices: Sequence[str]) -> str:
    """`guided_decoding.choice`: unlike `re.escape`, escapes only what may be escaped in every syntax."""
    escaped = (re.sub(r"([\\.+*?()|\[\]{}^$/])", r"\\\1", each).replace("\n", r"\n") for each in choices)
    return f"({'|'.join(escaped)})"


def json_grammar(schema: Any) -> str:
    """The schema, with llguidance's option for compact JSON, unless the client set its own."""
    if not isinstance(schema, dict):
        schema = {} if schema is True else {"not": {}}
    return _encoded({"x-guidance": _ONE_LINE, **close_objects(schema)})


def close_objects(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without unlisted properties, wherever it does not say that they are allowed.

    Whatever satisfies the result satisfies the schema. A schema that joins several for one value (`allOf`, `if`) is
    returned as it is, because a property listed in one of them is unlisted in the others.
    """
    return schema if _joins(schema) else _closed(schema)


CHARACTER = (
    r"[ !#-\[\]-\x7f"
    "\x80-\u07ff\u0800-\u0fff\u1000-\ucfff\ud000-\ud7ff\ue000-\uffff"
    "\U00010000-\U0003ffff\U00040000-\U000fffff\U00100000-\U0010ffff]"
)
"""Any that stands for itself in a JSON string. `[^…]` has xgrammar take bytes outside of UTF-8, and a range whose UTF-8
begins in several ways ends in a state without a next byte."""


def without_control_characters(node: Any) -> Any:
    """The schema with a pattern for strings that only have a length.

    xgrammar lets such a string contain raw control characters, which are not JSON, and bytes that are no character at
    all, which count as one and are shown as several. Whatever satisfies the result satisfies the schema.
    """
    if not isinstance(node, dict):
        return node
    made = dict(node)
    for key in _ONE:
        if key in node:
            made[key] = without_control_characters(node[key])
    for key in (*_MANY, "allOf"):
        if isinstance(node.get(key), list):
            made[key] = [without_control_characters(child) for child in node[key]]
    for key in _NAMED:
        if isinstance(node.get(key), dict):
            made[key] = {name: without_control_characters(child) for name, child in node[key].items()}
    low, high = node.get("minLength", 0), node.get("maxLength")
    measured = type(low) is int and (low > 0 if high is None else type(high) is int and 0 <= low <= high)
    if measured and "string" in _types(node) and {"pattern", "format", "enum", "const", "$ref"}.isdisjoint(node):
        made.pop("minLength", None)
        made.pop("maxLength", None)
        made["pattern"] = f"^{CHARACTER}{{{low},{'' if high is None else high}}}$"
    return made


def _types(node: dict[str, Any]) -> list[Any]:
    types = node.get("type")
    return types if isinstance(types, list) else [types]


def _closed(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    closed = dict(node)
    for key in _ONE:
        if isinstance(node.get(key), dict):
            closed[key] = _closed(node[key])
    for key in _MANY:
        if isinstance(node.get(key), list):
            closed[key] = [_closed(child) for child in node[key]]
    for key in _NAMED:
        if isinstance(node.get(key), dict):
            closed[key] = {name: _closed(child) for name, child in node[key].items()}
    listed = node.get("properties")
    if (
        isinstance(listed, dict)
        and "additionalProperties" not in node
        and _COMBINING.isdisjoint(node)
        and set(node.get("required", ())) <= listed.keys()
    ):
        closed["additionalProperties"] = False
    return closed


def _joins(node: Any) -> bool:
    """Whether two schemas apply to one value anywhere in it."""
    if isinstance(node, list):
        return any(map(_joins, node))
    if not isinstance(node, dict):
        return False
    combining = not {"allOf", "if", "not", "contains"}.isdisjoint(node)
    beside = "properties" in node and not {"anyOf", "oneOf", "$ref"}.isdisjoint(node)
    return combining or beside or any(map(_joins, node.values()))


def _quoted(text: str) -> str:
    return _encoded(text)


def _encoded(value: Any) -> str:
    return msgspec.json.encode(value).decode()
