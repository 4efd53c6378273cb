from __future__ import annotations

from typing import Any

import pytest

from dynamo.pipeline.schema import check_schema
from dynamo.protocols.errors import InvalidRequest
from support.request_bodies import SCHEMA


@pytest.mark.parametrize(
    "schema",
    [
        {},
        True,
        SCHEMA,
        {"type": ["string", "null"]},
        {"type": "array", "items": [{"type": "string"}]},
        {"properties": {"type": {"type": "string"}, "required": {"enum": [1]}}},
        {"anyOf": [{"const": 1}, False]},
        {"additionalProperties": {"type": "number"}},
    ],
)
def test_schemas_pass(schema: Any) -> None:
    check_schema(schema, "s")


@pytest.mark.parametrize(
    ("schema", "param"),
    [
        ([], "s"),
        ({"type": "text"}, "s.type"),
        ({"type": {}}, "s.type"),
        ({"properties": []}, "s.properties"),
        ({"properties": {"a": 1}}, "s.properties.a"),
        ({"properties": {"a": {"items": "x"}}}, "s.properties.a.items"),
        ({"required": "a"}, "s.required"),
        ({"required": [1]}, "s.required"),
        ({"enum": []}, "s.enum"),
        ({"anyOf": []}, "s.anyOf"),
        ({"anyOf": [{}, 2]}, "s.anyOf[1]"),
        ({"$defs": {"x": {"$ref": "http://elsewhere/x.json"}}}, "s.$defs.x.$ref"),
    ],
)
def test_an_invalid_schema_is_rejected_by_path(schema: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_schema(schema, "s")
    assert caught.value.param == param
