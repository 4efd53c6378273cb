"""Converts Python literals to JSON text, without evaluating anything."""

from __future__ import annotations

import json
import re

from .json_text import MAX_DEPTH, json_string

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<string>"(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+')
      | (?P<number>[+-]?(?:0[xX][0-9a-fA-F]+|\d[\d_]*(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)(?!\w))
      | (?P<word>[A-Za-z]+)
      | (?P<mark>[][{}(),:])
      | (?P<end>\Z)
    )""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_CONSTANTS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)


def literal_to_json(text: str) -> str:
    """A Python literal as JSON text; raises ValueError for anything else, or if JSON cannot express it."""
    tokens: list[tuple[str, str]] = []
    at = 0
    while True:
        found = _TOKEN.match(text, at)
        if not found:
            raise ValueError("not a literal")
        tokens.append((found.lastgroup or "", found[found.lastgroup or 0]))
        at = found.end()
        if found.lastgroup == "end":
            break
    tokens.reverse()
    try:
        value = _json(tokens, 0)
    except OverflowError as error:
        raise ValueError("no such character") from error
    if tokens.pop()[0] != "end":
        raise ValueError("more than one literal")
    return value


def _json(tokens: list[tuple[str, str]], depth: int) -> str:
    kind, text = tokens.pop()
    if kind == "string":
        return json_string(_unescaped(text[1:-1]))
    if kind == "number":
        return _number(text)
    if kind == "word" and text in _CONSTANTS:
        return _CONSTANTS[text]
    if kind != "mark" or text not in "[({" or depth == MAX_DEPTH:
        raise ValueError("not a literal")
    closer = {"[": "]", "(": ")", "{": "}"}[text]
    items: list[str] = []
    while tokens[-1] != ("mark", closer):
        item = _json(tokens, depth + 1)
        if text == "{":
            if tokens.pop() != ("mark", ":"):
                raise ValueError("a set is not JSON")
            key = item if item.startswith('"') else json_string(item)
            item = f"{key}: {_json(tokens, depth + 1)}"
        items.append(item)
        if tokens[-1] == ("mark", ","):
            tokens.pop()
        elif tokens[-1] != ("mark", closer):
            raise ValueError("a comma is missing")
    tokens.pop()
    inside = ", ".join(items)
    return f"{{{inside}}}" if text == "{" else f"[{inside}]"


def _number(text: str) -> str:
    if _JSON_NUMBER.fullmatch(text):
        return text
    plain = text.replace("_", "")
    try:
        return str(int(plain, 0))
    except ValueError:
        return json.dumps(float(plain), allow_nan=False)


_ESCAPE = re.compile(
    r"\\(?:x(?P<x>[0-9a-fA-F]{2})|u(?P<u>[0-9a-fA-F]{4})|U(?P<U>[0-9a-fA-F]{8})|(?P<octal>[0-7]{1,3})|(?P<one>.))",
    re.DOTALL,
)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "\n": ""}


def _unescaped(body: str) -> str:
    return _ESCAPE.sub(_escape, body) if "\\" in body else body


def _escape(found: re.Match[str]) -> str:
    if octal := found["octal"]:
        return chr(int(octal, 8))
    if digits := found["x"] or found["u"] or found["U"]:
        return chr(int(digits, 16))
    char = found["one"]
    if char in "\\'\"":
        return char
    return _ESCAPED.get(char, found[0])
