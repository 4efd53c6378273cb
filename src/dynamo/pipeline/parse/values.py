"""Converts argument values that a format does not write as JSON into JSON text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from .events import ParsedSink
from .json_text import json_escaped, json_string
from .python_literal import literal_to_json
from .source import Reading, Source, pass_on

_COMBINED = ("anyOf", "oneOf", "allOf")


def stream_string(src: Source, sink: ParsedSink, closers: tuple[str, ...]) -> Reading[str]:
    """Pass on a string value as it arrives, up to the first of `closers`; returns that, "" if the output ends first.

    A string that was cut off is left unclosed, so that it cannot be mistaken for a complete one.
    """
    sink.args('"')
    closer = yield from pass_on(src, closers, lambda text: sink.args(json_escaped(text)))
    if closer:
        sink.args('"')
        src.pos = len(closer)
        src.drop()
    return closer


def parsed_json(text: str) -> object:
    """The value, or `msgspec.UNSET` if the text is not JSON."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return msgspec.UNSET


def types_of(schema: object) -> frozenset[str]:
    """The JSON types that a schema allows; empty if it names none."""
    return frozenset(_types(schema))


def property_of(schema: object, key: str) -> object:
    """The schema of one property of an object; None if there is none."""
    properties = (part.get("properties") for part in _parts(schema))
    return _any_of([one[key] for one in properties if isinstance(one, dict) and key in one])


def items_of(schema: object) -> object:
    """The schema of an array's items; None if there is none."""
    return _any_of([part["items"] for part in _parts(schema) if "items" in part])


def _any_of(schemas: list[object]) -> object:
    if len(schemas) > 1:
        return {"anyOf": schemas}
    return schemas[0] if schemas else None


def _parts(schema: object, depth: int = 8) -> Iterator[dict[str, Any]]:
    """A schema and all schemas that it combines."""
    if isinstance(schema, dict) and depth:
        yield schema
        for combined in _COMBINED:
            choices = schema.get(combined)
            for choice in choices if isinstance(choices, list) else []:
                yield from _parts(choice, depth - 1)


def _types(schema: object, depth: int = 8) -> list[str]:
    if not isinstance(schema, dict) or not depth:
        return []
    declared = schema.get("type")
    if isinstance(declared, str):
        return [declared]
    if isinstance(declared, list):
        return [name for name in declared if isinstance(name, str)]
    options = schema.get("enum")
    if isinstance(options, list):
        return [name for option in options for name in _json_types(option)]
    found: list[str] = []
    for combined in _COMBINED:
        choices = schema.get(combined)
        for choice in choices if isinstance(choices, list) else []:
            found += _types(choice, depth - 1)
    return found


def _json_types(value: object) -> tuple[str, ...]:
    match value:
        case None:
            return ("null",)
        case bool():
            return ("boolean",)
        case int() | float():
            return ("number", "integer")
        case str():
            return ("string",)
        case list():
            return ("array",)
        case _:
            return ("object",)


def json_value(text: str, types: frozenset[str]) -> str:
    """The value as JSON text, of a type that the schema allows; a string if nothing else fits.

    Without a schema, text that looks like a number, boolean, null, object or array becomes that value. Quoted text
    keeps its quotes, because these formats do not quote strings.
    """
    if types == {"string"}:
        return json_string(text)
    stripped = text.strip()
    value = parsed_json(stripped)
    if types and "string" not in types:
        if value is not msgspec.UNSET:
            return stripped
        try:
            return literal_to_json(stripped)
        except ValueError:
            return json_string(text)
    if value is msgspec.UNSET or isinstance(value, str) or (types and types.isdisjoint(_json_types(value))):
        return json_string(text)
    return stripped
