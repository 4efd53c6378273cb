"""Decodes request bodies into structs, and explains invalid ones by naming the field."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import inspect

from dynamo.protocols.errors import InvalidRequest

T = TypeVar("T")
Offset = Callable[[int], int]
"""Where a byte of what is decoded stands in what the client sent."""

_AT = re.compile(r"^(?P<what>.*?)(?: - at `(?P<key>key in )?\$(?P<path>[^`]*)`)?$", re.DOTALL)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_EXPECTED = re.compile(r"Expected `(?P<kinds>[^`]+)`, got `(?P<got>\w+)`")
_BOUND = re.compile(r"Expected `\w+` (?P<length>of length )?(?P<op>>=|<=|>|<|==) (?P<bound>-?[\d.e+]+)")
_UNPAIRED = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
)
_SEARCHED = 1 << 20
"""Bytes in which an unpaired surrogate is looked for: each megabyte takes 30 ms."""
_WORDS = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "array": "list",
    "object": "object",
    "null": "null",
}
_BOUNDS = {">=": "at least", "<=": "at most", ">": "greater than", "<": "less than", "==": "exactly"}
_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def _same(at: int) -> int:
    return at


class BodyDecoder(Generic[T]):
    """Decodes bodies of one type. For any bytes it returns a struct or raises `InvalidRequest`."""

    def __init__(self, kind: type[T]) -> None:
        self.kind = kind
        self._decode = msgspec.json.Decoder(kind).decode
        self._shape = inspect.type_info(kind)

    def decode(self, body: bytes | bytearray, ignored: list[str] | None = None, offset: Offset = _same) -> T:
        """Unknown fields are rejected, or removed and their names added to `ignored`."""
        try:
            return self._decode(body)
        except msgspec.ValidationError as error:
            return self._decode_invalid(body, str(error), ignored, offset)
        except _NOT_JSON as error:
            raise _malformed(body, error, offset) from None

    def _decode_invalid(self, body: bytes | bytearray, text: str, ignored: list[str] | None, offset: Offset) -> T:
        """Decode again without types: to find all unknown fields, and the value that `text` complains about."""
        try:
            value = msgspec.json.decode(body)
        except msgspec.ValidationError:
            raise self._explain(text, None) from None
        except _NOT_JSON as error:
            raise _malformed(body, error, offset) from None
        unknown = _remove_unknown_fields(value, self._shape)
        if not unknown:
            raise self._explain(text, value) from None
        if ignored is None:
            raise _unsupported(*unknown)
        ignored += unknown
        try:
            return msgspec.convert(value, self.kind)
        except msgspec.ValidationError as error:
            raise self._explain(str(error), value) from None

    def _explain(self, text: str, value: Any) -> InvalidRequest:
        found = _AT.match(text)
        assert found is not None
        steps = [name or index for name, index in _STEP.findall(found["path"] or "")]
        what, path = found["what"], (found["path"] or "").lstrip(".") or None
        if missing := re.fullmatch(r"Object missing required field `(.+)`", what):
            return InvalidRequest.missing(f"{path}.{missing[1]}" if path else missing[1])
        if extra := re.fullmatch(r"Object contains unknown field `(.+)`", what):
            return _unsupported(f"{path}.{extra[1]}" if path else extra[1])
        name = path or "The request body"
        if kinds := _EXPECTED.match(what):
            return InvalidRequest(f"{name}: expected {_kinds(kinds, path)}.", path, "invalid_type")
        got = _shown(value, steps)
        if bound := _BOUND.match(what):
            limit = f"{float(bound['bound']):.17g}" if "." in bound["bound"] else bound["bound"]
            word = f"{_BOUNDS[bound['op']]} {limit}"
            if bound["length"]:
                return InvalidRequest(f"{name}: the length must be {word}.", path, "invalid_value")
            return InvalidRequest(f"{name}: must be {word}{got and ', got ' + got}.", path, "invalid_value")
        if what.startswith("Expected `str` matching regex"):
            message = f"{name}: must be 1 to 128 letters, digits, `_` or `-`{got and ', got ' + got}."
            return InvalidRequest(message, path, "invalid_value")
        if what.startswith("Invalid ") and (choices := sorted(_choices(self._shape, steps))):
            expected = ", ".join(f"'{choice}'" for choice in choices)
            return InvalidRequest(f"{name}: {got or 'this value'} is not one of {expected}.", path, "invalid_value")
        return InvalidRequest(f"{name}: {what[:1].lower()}{what[1:]}.", path, "invalid_value")


def _unsupported(*names: str) -> InvalidRequest:
    """Lists at most twenty names, shortened: a huge invalid body must not cause a huge response."""
    listed = ", ".join(f"`{name[:64]}`" for name in names[:20])
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return InvalidRequest(f"Unsupported parameter(s): {listed}{more}", names[0][:64], "unsupported_parameter")


def _malformed(body: bytes | bytearray, error: Exception, offset: Offset) -> InvalidRequest:
    """Says why these bytes are not JSON, and where."""
    text = str(error)
    if isinstance(error, UnicodeDecodeError):
        message = "The request body is not valid UTF-8."
    elif isinstance(error, RecursionError):
        message = "The request body is nested too deeply."
    elif not body.strip():
        message = "The request body is empty; a JSON object was expected."
    elif found := re.fullmatch(r"JSON is malformed: (.*) \(byte (\d+)\)", text):
        at = int(found[2])
        byte, line = offset(at), body.count(b"\n", 0, at) + 1
        column = byte - offset(body.rfind(b"\n", 0, at) + 1) + 1
        message = f"The request body is not valid JSON: {found[1]} at line {line}, column {column} (byte {byte})."
    elif "truncated" in text and (pair := _UNPAIRED.search(body, 0, _SEARCHED)):
        message = f"The request body is not valid JSON: unpaired surrogate escape at byte {offset(pair.start())}."
    elif "truncated" in text:
        message = f"The request body is not valid JSON: it ends too early, after {offset(len(body))} bytes."
    else:
        message = f"The request body is not valid JSON: {text}."
    return InvalidRequest(message, code="invalid_json")


def _kinds(found: re.Match[str], path: str | None) -> str:
    words = [_WORDS.get(kind, kind) for kind in found["kinds"].split(" | ")]
    if path and path.endswith("content"):
        words = ["list of parts" if word == "list" else word for word in words]
    return f"{' or '.join(words)}, got {_WORDS.get(found['got'], found['got'])}"


def _shown(value: Any, steps: list[str]) -> str:
    """The value the client sent at this path, shortened; empty if the path leads nowhere."""
    for step in steps:
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            return ""
    if isinstance(value, str):
        return repr(value) if len(value) <= 64 else f"{value[:60]!r}…"
    return str(value) if isinstance(value, int | float) and abs(value) < 10**24 else ""


def _variants(shape: inspect.Type) -> list[inspect.Type]:
    if isinstance(shape, inspect.Metadata):
        return _variants(shape.type)
    if isinstance(shape, inspect.UnionType):
        return [variant for member in shape.types for variant in _variants(member)]
    return [shape]


def _remove_unknown_fields(value: Any, shape: inspect.Type, prefix: str = "") -> list[str]:
    """Remove from `value` the fields that strict structs do not have, and return their paths."""
    found: list[str] = []
    if not isinstance(value, dict):
        return found
    for variant in _variants(shape):
        if not isinstance(variant, inspect.StructType) or not variant.forbid_unknown_fields:
            continue
        fields = {field.encode_name: field.type for field in variant.fields}
        for name in list(value):
            if name not in fields:
                found.append(prefix + name)
                del value[name]
            else:
                found += _remove_unknown_fields(value[name], fields[name], f"{prefix}{name}.")
    return found


def _choices(shape: inspect.Type, steps: list[str]) -> set[str]:
    """The strings allowed at this path."""
    found: set[str] = set()
    for variant in _variants(shape):
        match variant:
            case inspect.LiteralType() if not steps:
                found |= {str(value) for value in variant.values}
            case inspect.StructType() if steps:
                if steps == [variant.tag_field]:
                    found.add(str(variant.tag))
                for field in variant.fields:
                    if field.encode_name == steps[0]:
                        found |= _choices(field.type, steps[1:])
            case inspect.ListType() if steps:
                found |= _choices(variant.item_type, steps[1:])
    return found
