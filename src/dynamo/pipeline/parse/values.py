"""Converts argument values that a format does not write as JSON into JSON text."""

from __future__ import annotations

from typing import Any

import msgspec

from .python_literal import json_string, literal_to_json


def parsed_json(text: str) -> object:
    """The value, or `msgspec.UNSET` if the text is not JSON."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return msgspec.UNSET


def types_of(schema: dict[str, Any] | None, key: str) -> frozenset[str]:
    """The JSON types that a tool's schema allows for this parameter; empty if it names none."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return frozenset(_types(properties.get(key))) if isinstance(properties, dict) else frozenset()


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
    for combined in ("anyOf", "oneOf", "allOf"):
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
