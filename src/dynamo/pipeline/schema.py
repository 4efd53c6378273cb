"""JSON schemas that clients send: refused here when no engine could compile them."""

from __future__ import annotations

from typing import Any

from dynamo.protocols.errors import InvalidRequest

MAX_NESTING = 100
"""Deeper values would reach the recursion limits of the encoders and grammar compilers they are handed to."""

_TYPES = frozenset(("string", "number", "integer", "boolean", "object", "array", "null"))
_ONE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_MANY = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")


def check_value(value: Any, param: str) -> None:
    """Free-form JSON must survive the trip to an engine: bounded nesting, and integers that fit in 64 bits."""
    layer = [value]
    for _ in range(MAX_NESTING):
        below: list[Any] = []
        for node in layer:
            if isinstance(node, dict):
                below += node.values()
            elif isinstance(node, list):
                below += node
            elif isinstance(node, int) and not -(2**63) <= node < 2**63:
                raise InvalidRequest(f"{param}: an integer in it does not fit in 64 bits.", param, "invalid_value")
        if not below:
            return
        layer = below
    raise InvalidRequest(f"{param}: nested more than {MAX_NESTING} levels deep.", param, "invalid_value")


def check_schema(schema: Any, param: str) -> None:
    """Raises at the first place where the schema is not one, or refers to something outside itself."""
    check_value(schema, param)
    pending = [(schema, param)]
    while pending:
        node, path = pending.pop()
        if isinstance(node, bool):
            continue
        if not isinstance(node, dict):
            raise _bad(path, "a schema must be an object or a boolean")
        _check_words(node, path)
        pending += [(node[word], f"{path}.{word}") for word in _ONE if word in node and not _old_items(word, node)]
        for word in _MANY:
            if word in node:
                if not isinstance(node[word], list) or not node[word]:
                    raise _bad(f"{path}.{word}", "expected a list of at least one schema")
                pending += [(each, f"{path}.{word}[{index}]") for index, each in enumerate(node[word])]
        for word in _NAMED:
            if word in node:
                if not isinstance(node[word], dict):
                    raise _bad(f"{path}.{word}", "expected an object of schemas")
                pending += [(each, f"{path}.{word}.{name[:64]}") for name, each in node[word].items()]


def _old_items(word: str, node: dict[str, Any]) -> bool:
    return word == "items" and isinstance(node[word], list)


def _check_words(node: dict[str, Any], path: str) -> None:
    kinds = node.get("type", [])
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if not isinstance(kind, str) or kind not in _TYPES:
            raise _bad(f"{path}.type", f"{str(kind)[:64]!r} is not one of {', '.join(sorted(_TYPES))}")
    required = node.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise _bad(f"{path}.required", "expected a list of strings")
    if "enum" in node and not (isinstance(node["enum"], list) and node["enum"]):
        raise _bad(f"{path}.enum", "expected a list of at least one value")
    reference = node.get("$ref", "#")
    if not isinstance(reference, str) or not reference.startswith("#"):
        raise _bad(f"{path}.$ref", "a reference must stay inside the schema and begin with '#'")


def _bad(param: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"{param}: {why}.", param, "invalid_schema")
