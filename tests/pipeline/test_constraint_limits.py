"""Constraints that no compiler should see are refused by the field that asks for too much."""

from __future__ import annotations

from typing import Any

import pytest

from dynamo.pipeline.constraint_limits import (
    MAX_COUNT,
    MAX_SCHEMA_DEPTH,
    check_fits,
    check_repetition,
    check_schema_limits,
    without_large_maxima,
)
from dynamo.protocols.errors import InvalidRequest


def chain(links: int) -> dict[str, Any]:
    """Definitions that each need the next one."""
    definitions: dict[str, Any] = {
        f"d{link}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{link + 1}"}}, "required": ["a"]}
        for link in range(links)
    }
    return {"$defs": definitions | {f"d{links}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
            "required": ["children"],
        }
    },
    "$ref": "#/$defs/node",
}


def refused(schema: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        check_schema_limits(schema, "s")
    return caught.value


@pytest.mark.parametrize("links", [60, 238, 1200])
def test_definitions_that_refer_to_each_other_in_a_long_chain_are_refused(links: int) -> None:
    assert f"more than {MAX_SCHEMA_DEPTH} deep" in refused(chain(links)).message


def test_a_long_cycle_of_definitions_is_refused() -> None:
    schema = chain(238)
    schema["$defs"]["d238"] = {"$ref": "#/$defs/d0"}
    assert refused(schema).param == "s"


def test_a_chain_met_first_from_its_end_is_refused() -> None:
    schema = chain(238)
    del schema["$ref"]
    schema["anyOf"] = [{"$ref": f"#/$defs/d{link}"} for link in reversed(range(239))]
    assert refused(schema).param == "s"


@pytest.mark.parametrize("schema", [TREE, chain(30), nested(99), {"properties": {"self": {"$ref": "#"}}}, True])
def test_recursive_and_moderately_deep_schemas_pass(schema: Any) -> None:
    check_schema_limits(schema, "s")


def test_a_schema_that_uses_one_definition_often_is_walked_once() -> None:
    definitions = {
        f"d{level}": {"anyOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 2, "description": "twice"} for level in range(45)
    }
    check_schema_limits({"$defs": definitions | {"d45": {"type": "null"}}, "$ref": "#/$defs/d0"}, "s")


@pytest.mark.parametrize("name", ["minItems", "minLength", "minProperties", "minContains"])
@pytest.mark.parametrize("count", [100_000_000, 1e8])
def test_a_lower_bound_that_cannot_be_compiled_is_refused_by_its_name(name: str, count: float) -> None:
    assert refused({"properties": {"a": {name: count}}}).param == f"s.properties.{name}"
    check_schema_limits({"properties": {"a": {name: MAX_COUNT}}}, "s")


def test_upper_bounds_that_no_answer_reaches_are_left_out_of_what_engines_compile() -> None:
    items = {"maxLength": 10**9, "minLength": 1}
    schema = {"maxItems": 10**8, "items": items, "properties": {"maxItems": {"maxItems": 5}}}
    assert without_large_maxima(schema) == {
        "items": {"minLength": 1},
        "properties": {"maxItems": {"maxItems": 5}},
    }


@pytest.mark.parametrize(
    "text",
    [
        "a{100000000}",
        "a{1,100000000}",
        "(((a{100}){100}){100})",
        "[a-z\\]]{70000}",
        r"\d{70000,}",
        'start: "a"~100000000',
        'start: "a"~1..100000000',
        "a{99999999999999999999}",
    ],
)
def test_huge_repetitions_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_repetition(text, "guided_regex")
    assert caught.value.param == "guided_regex"


@pytest.mark.parametrize(
    "text",
    [
        "a{3}",
        "(ab|cd){2,40}x*",
        r"\{99999999\}",
        "[{99999999}]",
        "((a{10}){10}){10}",
        "a{",
        "(",
        ")",
        "a" * 99999 + "{2}",
    ],
)
def test_ordinary_expressions_pass(text: str) -> None:
    check_repetition(text, "guided_regex")


def test_a_huge_repetition_in_a_pattern_is_refused_by_its_path() -> None:
    assert refused({"properties": {"a": {"pattern": "^(ab){999999}$"}}}).param == "s.properties.pattern"
    assert refused({"patternProperties": {"^a{999999}$": {}}}).param == "s.patternProperties"


def test_what_does_not_fit_into_the_context_is_refused() -> None:
    for schema in ({"type": "array", "minItems": 3000}, {"type": "string", "minLength": 99_999}):
        with pytest.raises(InvalidRequest, match="2048"):
            check_fits(schema, 2048, 20_480, "response_format")
    check_fits({"type": "array", "minItems": 2000}, 2048, 20_480, "response_format")
    check_fits({"anyOf": [{"type": "array", "minItems": 3000}, {"type": "null"}]}, 2048, 20_480, "response_format")
