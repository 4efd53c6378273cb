"""Checks JSON values and JSON schemas sent by clients, so that engines only get what they can compile."""

from __future__ import annotations

from typing import Any

from dynamo.protocols.errors import InvalidRequest

MAX_NESTING = 100
"""Deeper values would hit the recursion limits of encoders and grammar compilers."""

MAX_VALUES = 65_536
"""More values in one take the checks and the template too long."""

_TYPES = frozenset(("string", "number", "integer", "boolean", "object", "array", "null"))
_ONE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_MANY = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")


def check_value(value: Any, param: str) -> None:
    """Free-form JSON must be encodable for an engine: bounded nesting and size, and integers that fit in 64 bits."""
    layer, values = [value], 1
    for _ in range(MAX_NESTING):
        below: list[Any] = []
        for node in layer:
            if isinstance(node, dict):
                below += node.values()
            elif isinstance(node, list):
                below += node
            elif isinstance(node, int) and not -(2**63) <= node < 2**63:
                raise InvalidRequest.bad_value(param, "an integer in it does not fit in 64 bits")
        if not below:
            return
        values += len(below)
        if values > MAX_VALUES:
            raise InvalidRequest.bad_value(param, f"at most {MAX_VALUES} values are allowed in it")
        layer = below
    raise InvalidRequest.bad_value(param, f"nested more than {MAX_NESTING} levels deep")


def check_schema(schema: Any, param: str) -> None:
    """Raises at the first place where the schema is invalid or refers to another document."""
    check_value(schema, param)
    pending = [(schema, param)]
    while pending:
        node, path = pending.pop()
        if isinstance(node, bool):
            continue
        if not isinstance(node, dict):
            raise _bad(path, "a schema must be an object or a boolean")
        _check_keywords(node, path)
        pending += [(node[key], f"{path}.{key}") for key in _ONE if key in node and not _is_tuple_items(key, node)]
        for key in _MANY:
            if key in node:
                if not isinstance(node[key], list) or not node[key]:
                    raise _bad(f"{path}.{key}", "expected a list of at least one schema")
                pending += [(each, f"{path}.{key}[{index}]") for index, each in enumerate(node[key])]
        for key in _NAMED:
            if key in node:
                if not isinstance(node[key], dict):
                    raise _bad(f"{path}.{key}", "expected an object of schemas")
                pending += [(each, f"{path}.{key}.{name[:64]}") for name, each in node[key].items()]


def _is_tuple_items(keyword: str, node: dict[str, Any]) -> bool:
    """Up to draft 2019-09, `items` could be a list of schemas, which `prefixItems` is today."""
    return keyword == "items" and isinstance(node[keyword], list)


def _check_keywords(node: dict[str, Any], path: str) -> None:
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
