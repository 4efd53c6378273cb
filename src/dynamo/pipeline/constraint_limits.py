"""Bounds of a constraint that its size in bytes does not bound: depth behind references, and counts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from dynamo.protocols.errors import InvalidRequest

MAX_SCHEMA_DEPTH = 100
"""The limit of nested schemas, references followed: grammar compilers recurse, and die where their stack ends."""
MAX_COUNT = 65_536
"""The limit of repetitions in a constraint, those of nested groups of an expression multiplied."""

_LEAST = ("minItems", "minLength", "minProperties", "minContains")
_MOST = ("maxItems", "maxLength", "maxProperties", "maxContains")
_ONE = (
    "items", "additionalProperties", "additionalItems", "unevaluatedProperties", "unevaluatedItems",
    "not", "if", "then", "else", "contains", "propertyNames",
)  # fmt: skip
_MANY = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_NAMED = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
_DEFINITIONS = frozenset(("$defs", "definitions"))
_COUNT = re.compile(r"\{\s*(\d*)\s*(?:,\s*(\d*)\s*)?\}|~\s*(\d+)(?:\s*\.\.\s*(\d+))?")
"""`{n,m}` as in regular expressions and xgrammar's EBNF, `~n..m` as in Lark."""


def check_schema_limits(schema: Any, param: str) -> None:
    """Raises InvalidRequest for a schema that is too deep for a grammar compiler, or that asks for too much."""
    _check_depth(schema, param)
    for node, path in _schemas(schema, param):
        for name in _LEAST:
            if _number(node.get(name)) > MAX_COUNT:
                raise InvalidRequest.bad_value(f"{path}.{name}", f"must be at most {MAX_COUNT}")
        if isinstance(pattern := node.get("pattern"), str):
            check_repetition(pattern, f"{path}.pattern")
        if isinstance(patterns := node.get("patternProperties"), dict):
            for pattern in patterns:
                check_repetition(pattern, f"{path}.patternProperties")


def check_fits(schema: Any, context_length: int, characters: int, param: str) -> None:
    """Raises InvalidRequest for a schema that no answer within the context satisfies.

    `characters` is the longest text that fits into the context.
    """
    # Behind `anyOf` and the like another branch may be satisfied, so only what every answer must have is counted.
    node, path, hops = schema, param, 0
    while isinstance(node, dict) and isinstance(node.get("$ref"), str) and hops < MAX_SCHEMA_DEPTH:
        node, hops = _resolve(schema, node["$ref"]), hops + 1
    if not isinstance(node, dict):
        return
    for name in ("minItems", "minProperties"):
        kinds = node.get("type")
        kind = "array" if name == "minItems" else "object"
        if kinds == kind and _number(node.get(name)) > context_length:
            why = f"{node[name]} need more tokens than the model's context of {context_length}"
            raise InvalidRequest.bad_value(f"{path}.{name}", why)
    if node.get("type") == "string" and _number(node.get("minLength")) > characters:
        why = f"{node['minLength']} characters do not fit into the model's context of {context_length} tokens"
        raise InvalidRequest.bad_value(f"{path}.minLength", why)


def without_large_maxima(node: Any) -> Any:
    """The schema without upper bounds over `MAX_COUNT`: no answer comes near them, and some compilers unroll them."""
    if not any(_number(each.get(name)) > MAX_COUNT for each, _ in _schemas(node, "") for name in _MOST):
        return node
    return _lowered(node)


def check_repetition(text: str, param: str) -> None:
    """Raises InvalidRequest for a regular expression or grammar whose repetitions multiply to more than `MAX_COUNT`."""
    sizes = [0]
    repeated = 0
    last = 0
    """The size of what a count that follows would repeat."""
    position = 0
    while position < len(text):
        character = text[position]
        count = _COUNT.match(text, position) if character in "{~" else None
        if count is not None and count.group() != "{}":
            times = max((int(each[:9]) for each in count.groups() if each), default=1)
            more = last * max(times - 1, 0)
            sizes[-1] += more
            repeated += more
            last *= max(times, 1)
            position = count.end()
            if repeated > MAX_COUNT:
                raise InvalidRequest.bad_value(param, f"its repetitions are more than {MAX_COUNT}")
            continue
        if character == "(":
            sizes.append(0)
        elif character == ")":
            last = sizes.pop() if len(sizes) > 1 else 1
            sizes[-1] += last
        elif not character.isspace():
            position = _end_of_atom(text, position)
            last = 1
            sizes[-1] += 1
            continue
        position += 1


def _end_of_atom(text: str, position: int) -> int:
    if text[position] == "\\":
        return position + 2
    if text[position] == "[":
        end = position + 1
        while end < len(text) and text[end] != "]":
            end += 2 if text[end] == "\\" else 1
        return end + 1
    return position + 1


def _check_depth(root: Any, param: str) -> None:
    depths: dict[int, int] = {}
    path: list[tuple[Any, Iterator[Any]]] = [(root, _below(root, root))]
    open_ids, heights = {id(root)}, [1]
    while path:
        node, children = path[-1]
        child = next(children, None)
        if child is None:
            path.pop()
            open_ids.discard(id(node))
            depths[id(node)] = height = heights.pop()
            if heights:
                heights[-1] = max(heights[-1], height + 1)
            continue
        if id(child) in open_ids:
            continue  # recursion: compiled once
        known = depths.get(id(child))
        if len(path) + (known or 1) > MAX_SCHEMA_DEPTH:
            why = f"schemas nested more than {MAX_SCHEMA_DEPTH} deep where its references are followed"
            raise InvalidRequest.bad_value(param, why)
        if known is not None:
            heights[-1] = max(heights[-1], known + 1)
            continue
        path.append((child, _below(child, root)))
        open_ids.add(id(child))
        heights.append(1)


def _below(node: Any, root: Any) -> Iterator[Any]:
    """The schemas that a compiler compiles for this one; a definition only where something refers to it."""
    if not isinstance(node, dict):
        return
    if isinstance(reference := node.get("$ref"), str):
        target = _resolve(root, reference)
        if isinstance(target, dict):
            yield target
    yield from (child for key, child in _children(node) if key not in _DEFINITIONS)


def _children(node: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key in _ONE:
        if isinstance(node.get(key), dict):
            yield key, node[key]
    for key in _MANY:
        if isinstance(node.get(key), list):
            yield from ((key, child) for child in node[key] if isinstance(child, dict))
    for key in _NAMED:
        if isinstance(node.get(key), dict):
            yield from ((key, child) for child in node[key].values() if isinstance(child, dict))


def _schemas(root: Any, param: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Each schema in this one, with the path of the keyword that it is under."""
    pending = [(root, param)] if isinstance(root, dict) else []
    while pending:
        node, path = pending.pop()
        yield node, path
        pending += [(child, f"{path}.{key}"[:512]) for key, child in _children(node)]


def _resolve(root: Any, reference: str) -> Any:
    if not reference.startswith("#"):
        return None
    node = root
    for part in reference[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict):
            node = node.get(name)
        elif isinstance(node, list) and name.isdigit() and len(name) < 9 and int(name) < len(node):
            node = node[int(name)]
        else:
            return None
    return node


def _lowered(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    made = {key: value for key, value in node.items() if key not in _MOST or _number(value) <= MAX_COUNT}
    for key in _ONE:
        if isinstance(node.get(key), dict):
            made[key] = _lowered(node[key])
    for key in _MANY:
        if isinstance(node.get(key), list):
            made[key] = [_lowered(child) for child in node[key]]
    for key in _NAMED:
        if isinstance(node.get(key), dict):
            made[key] = {name: _lowered(child) for name, child in node[key].items()}
    return made


def _number(value: Any) -> float:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else 0
