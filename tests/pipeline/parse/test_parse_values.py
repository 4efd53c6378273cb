from __future__ import annotations

import pytest

from dynamo.pipeline.parse.values import items_of, json_value, property_of, types_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Paris", '"Paris"'),
        ("42", "42"),
        (" true ", "true"),
        ("null", "null"),
        ('{"a": [1]}', '{"a": [1]}'),
        ('"quoted"', '"\\"quoted\\""'),
        ("01234", '"01234"'),
        ("NaN", '"NaN"'),
        ("True", '"True"'),
        ("", '""'),
        (" a ", '" a "'),
    ],
)
def test_without_a_schema_a_value_gets_the_type_it_looks_like(text: str, expected: str) -> None:
    assert json_value(text, frozenset()) == expected


@pytest.mark.parametrize(
    ("text", "types", "expected"),
    [
        ("42", {"string"}, '"42"'),
        ("42", {"integer"}, "42"),
        ("1e3", {"number"}, "1e3"),
        ("False", {"boolean"}, "false"),
        ("{'a': None}", {"object"}, '{"a": null}'),
        ("many", {"integer"}, '"many"'),
        ("null", {"string", "null"}, "null"),
        ("42", {"string", "null"}, '"42"'),
        ("42", {"string", "integer"}, "42"),
        ("[1]", {"array", "string"}, "[1]"),
    ],
)
def test_with_a_schema_a_value_gets_a_type_the_schema_allows(text: str, types: set[str], expected: str) -> None:
    assert json_value(text, frozenset(types)) == expected


@pytest.mark.parametrize(
    ("parameter", "expected"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["integer", "null"]}, {"integer", "null"}),
        ({"anyOf": [{"type": "string"}, {"oneOf": [{"type": "array"}]}]}, {"string", "array"}),
        ({"enum": ["a", "b"]}, {"string"}),
        ({"enum": [1, None]}, {"integer", "number", "null"}),
        ({"$ref": "#/x"}, set()),
        ({"type": 3, "anyOf": "no list", "enum": 4}, set()),
        (True, set()),
    ],
)
def test_a_schema_names_the_types_of_a_parameter(parameter: object, expected: set[str]) -> None:
    assert types_of(property_of({"type": "object", "properties": {"p": parameter}}, "p")) == expected


@pytest.mark.parametrize("schema", [None, {}, {"properties": None}, {"properties": {"q": {"type": "string"}}}])
def test_a_schema_that_does_not_know_the_parameter_names_no_type(schema: dict[str, object] | None) -> None:
    assert types_of(property_of(schema, "p")) == frozenset()


def test_a_property_and_items_may_have_the_types_of_every_alternative() -> None:
    texts, numbers = {"type": "string"}, {"type": "number"}
    objects = {"anyOf": [{"properties": {"a": texts}}, {"properties": {"a": numbers, "b": texts}}]}
    assert types_of(property_of(objects, "a")) == {"string", "number"}
    assert types_of(property_of(objects, "b")) == {"string"}
    assert types_of(items_of({"anyOf": [{"items": texts}, {"oneOf": [{"items": numbers}]}]})) == {"string", "number"}
