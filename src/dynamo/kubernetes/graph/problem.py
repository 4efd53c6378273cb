"""What is wrong with a graph, by the place of the field."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from dynamo.protocols.errors import StartError
from dynamo.settings import nearest

T = TypeVar("T")
_WHERE = re.compile(r"^(?P<what>.*?)(?: - at `(?P<where>[^`]*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_MISSING = re.compile(r"Object missing required field `(.*)`")


class GraphError(StartError):
    """The object is wrong; the message names the field and what is expected there."""


def converted(value: Any, kind: type[T], place: str) -> T:
    """The value as a struct, or what is wrong in it by its place."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        found = _WHERE.match(str(error))
        assert found
        where = f"{place}{(found['where'] or '$').removeprefix('$')}"
        raise GraphError(f"{where}: {_sentence(found['what'], kind)}") from error


def _sentence(what: str, kind: Any) -> str:
    if unknown := _UNKNOWN.match(what):
        return f"unknown field '{unknown[1]}'{nearest(unknown[1], _fields(kind))}"
    if missing := _MISSING.match(what):
        return f"the field '{missing[1]}' is missing"
    return what.replace("`", "'")[:1].lower() + what.replace("`", "'")[1:]


def _fields(kind: Any, depth: int = 3) -> set[str]:
    """The names of a struct's fields and of those inside it."""
    found: set[str] = set()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and depth:
        for each in msgspec.structs.fields(kind):
            found.add(each.encode_name)
            for inner in (each.type, *getattr(each.type, "__args__", ())):
                found |= _fields(inner, depth - 1)
    return found
