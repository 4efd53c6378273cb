from __future__ import annotations

import re
import sys
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo.engines.guided_schema import CHARACTER, Calls, close_objects, json_grammar, without_control_characters

NAMES = st.sampled_from("abc")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


def combined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    objects = st.fixed_dictionaries(
        {"type": st.just("object"), "properties": st.dictionaries(NAMES, inner, max_size=3)},
        optional={
            "required": st.lists(NAMES, max_size=2, unique=True),
            "additionalProperties": st.booleans() | inner,
            "minProperties": st.integers(0, 2),
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "patternProperties": st.fixed_dictionaries({"^a": inner}),
        },
    )
    lists = st.fixed_dictionaries({"type": st.just("array"), "items": inner}, optional={"contains": inner})
    joined = st.sampled_from(["anyOf", "oneOf", "allOf"]).flatmap(
        lambda key: st.fixed_dictionaries({key: st.lists(inner, min_size=1, max_size=3)})
    )
    return objects | lists | joined | st.fixed_dictionaries({"not": inner}) | st.fixed_dictionaries({"if": inner})


SCHEMAS = st.recursive(
    st.sampled_from([{}, {"type": "string"}, {"type": "integer"}, {"enum": ["x", 1, None]}, {"$ref": "#"}]),
    combined,
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(SCHEMAS, VALUES)
def test_whatever_fits_the_closed_schema_fits_the_schema(schema: dict[str, Any], value: Any) -> None:
    try:
        fits = jsonschema_rs.is_valid(close_objects(schema), value)
    except (ValueError, RecursionError):  # a schema that refers to itself without end
        return
    if fits:
        assert jsonschema_rs.is_valid(schema, value)


@pytest.mark.parametrize(
    ("schema", "closed"),
    [
        ({"type": "object", "properties": {"a": {}}}, True),
        ({"type": "object", "properties": {"a": {}}, "required": ["b"]}, False),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "string"}}, False),
        ({"type": "object", "properties": {"a": {}}, "anyOf": [{"required": ["b"]}]}, False),
        ({"type": "object"}, False),
    ],
)
def test_an_object_is_closed_if_its_properties_are_all_it_needs(schema: dict[str, Any], closed: bool) -> None:
    nested = {"type": "array", "items": schema}
    assert close_objects(nested) == {
        "type": "array",
        "items": schema | ({"additionalProperties": False} if closed else {}),
    }


def test_schemas_that_apply_together_stay_open() -> None:
    parts = [{"properties": {"a": {}}, "required": ["a"]}, {"properties": {"b": {}}, "required": ["b"]}]
    assert close_objects({"allOf": parts}) == {"allOf": parts}


def test_a_client_may_choose_its_own_whitespace() -> None:
    assert '"x-guidance":{"whitespace_flexible":true}' in json_grammar({"x-guidance": {"whitespace_flexible": True}})


def test_calls_are_limited() -> None:
    one = Calls(json={}, begin="<", end=">", separator=";", limit=1)
    assert one.grammar().startswith('start: call\ncall: "<" json ">"\njson: %json {')
    assert (
        Calls(json={}, begin="<", end=">", separator=";", limit=3).grammar().startswith('start: call (";" call){0,2}\n')
    )


@pytest.mark.parametrize(
    ("lengths", "times"),
    [({"maxLength": 5}, "{0,5}"), ({"minLength": 2}, "{2,}"), ({"minLength": 2, "maxLength": 5}, "{2,5}")],
)
def test_a_string_of_a_length_has_no_control_characters(lengths: dict[str, int], times: str) -> None:
    pattern = f"^{CHARACTER}{times}$"
    for kind in ("string", ["string", "null"]):
        nested = {"type": "array", "items": {"anyOf": [{"type": kind, **lengths}]}}
        assert without_control_characters(nested) == {
            "type": "array",
            "items": {"anyOf": [{"type": kind, "pattern": pattern}]},
        }


def test_each_character_is_one_that_stands_for_itself_in_json() -> None:
    one = re.compile(CHARACTER)
    for code in range(sys.maxunicode + 1):
        apart = chr(code) in '"\\' or code < 0x20 or 0xD800 <= code < 0xE000
        assert bool(one.fullmatch(chr(code))) is not apart, hex(code)


def test_each_range_of_characters_is_one_range_of_bytes_at_each_place() -> None:
    """xgrammar compiles no other range to exactly its characters."""
    for first, last in re.findall("([\x80-\U0010ffff])-([\x80-\U0010ffff])", CHARACTER):
        low, high = first.encode(), last.encode()
        assert len(low) == len(high)
        assert len(low) == 2 or low[0] == high[0] or (low[1:2], high[1:2]) == (b"\x80", b"\xbf") or low[0] == 0xF0
        assert set(low[2:]) <= {0x80}
        assert set(high[2:]) <= {0xBF}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"type": "string", "maxLength": 5, "pattern": "^a"},
        {"type": "string", "maxLength": "5"},
        {"type": "integer", "maxLength": 5},
        {"not": {"type": "string", "maxLength": 5}},
        True,
    ],
)
def test_other_schemas_are_left_as_they_are(schema: Any) -> None:
    assert without_control_characters(schema) == schema


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 3), st.none() | st.integers(0, 4), st.text(max_size=6))
def test_whatever_fits_the_pattern_fits_the_lengths(low: int, high: int | None, value: str) -> None:
    schema = {"type": "string", "minLength": low} | ({} if high is None else {"maxLength": high})
    narrowed = without_control_characters(schema)
    if jsonschema_rs.is_valid(narrowed, value):
        assert jsonschema_rs.is_valid(schema, value)
        assert narrowed == schema or not any(ord(character) < 32 for character in value)
