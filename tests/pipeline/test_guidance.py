from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dynamo.pipeline.guidance import forced_tool, guided_calls, guided_decoding
from dynamo.pipeline.parse import CallForm
from dynamo.protocols.chat import ChatRequest
from support.request_bodies import SCHEMA

PLAIN = {"type": "object", "properties": {"x": {"type": "integer"}}}
FORM = CallForm(begin="<c>", end="</c>", separator=",")
EMPTY = {"type": "object", "properties": {}}


def tool(name: str, parameters: Any = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def chat(**fields: Any) -> ChatRequest:
    return msgspec.convert({"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}, ChatRequest)


@pytest.mark.parametrize(
    ("fields", "form"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, {"json": {"type": "object"}}),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": PLAIN}}}, {"json": PLAIN}),
        ({"guided_json": PLAIN}, {"json": PLAIN}),
        ({"guided_json": '{"type":"array"}'}, {"json": {"type": "array"}}),
        (
            {"guided_json": PLAIN, "guided_whitespace_pattern": " ", "guided_decoding_backend": "xgrammar"},
            {"json": PLAIN, "whitespace_pattern": " ", "backend": "xgrammar"},
        ),
        ({"guided_regex": "a+"}, {"regex": "a+"}),
        ({"guided_choice": ["a", "b"]}, {"choice": ["a", "b"]}),
        ({"guided_grammar": "root ::= x"}, {"grammar": "root ::= x"}),
        ({"tools": [tool("f", PLAIN)], "tool_choice": "auto"}, None),
        ({"tools": [tool("f", PLAIN)], "tool_choice": "none"}, None),
        (
            {"tools": [tool("f", PLAIN), tool("g")], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            {"json": EMPTY},
        ),
        (
            {
                "tools": [tool("f", SCHEMA)],
                "tool_choice": {"type": "function", "function": {"name": "f"}},
                "response_format": {"type": "json_object"},
            },
            {"json": SCHEMA},
        ),
        (
            {"tools": [tool("f", PLAIN)], "tool_choice": "auto", "response_format": {"type": "json_object"}},
            {"json": {"type": "object"}},
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_each_constraint_becomes_guided_decoding(fields: dict[str, Any], form: dict[str, Any] | None) -> None:
    assert guided_decoding(chat(**fields)) == form


def test_a_required_call_is_a_list_of_calls_of_any_tool() -> None:
    request = chat(tools=[tool("f", PLAIN), tool("g")], tool_choice="required", parallel_tool_calls=False)
    form = guided_decoding(request)
    assert form is not None
    schema = form["json"]
    assert (schema["type"], schema["minItems"], schema["maxItems"]) == ("array", 1, 1)
    assert [each["properties"] for each in schema["items"]["anyOf"]] == [
        {"name": {"type": "string", "enum": ["f"]}, "parameters": PLAIN},
        {"name": {"type": "string", "enum": ["g"]}, "parameters": EMPTY},
    ]
    assert forced_tool(request) is None


@pytest.mark.parametrize(("parallel", "most"), [(None, 1), (False, 1), (True, 32)])
def test_there_is_one_forced_call_unless_several_were_asked_for(parallel: bool | None, most: int) -> None:
    request = chat(tools=[tool("f", PLAIN)], tool_choice="required", parallel_tool_calls=parallel)
    form = guided_decoding(request)
    own = guided_calls(request, FORM)
    assert form
    assert own
    assert (form["json"]["maxItems"], own["limit"]) == (most, most)


@pytest.mark.parametrize(
    ("choice", "names"),
    [("auto", None), ("required", ["f", "g"]), ({"type": "function", "function": {"name": "g"}}, ["g"])],
)
def test_a_forced_choice_is_also_told_in_the_models_own_form(choice: Any, names: list[str] | None) -> None:
    own = guided_calls(chat(tools=[tool("f", PLAIN), tool("g")], tool_choice=choice), FORM)
    assert (own is None) == (names is None)
    if own is not None:
        assert [each["properties"]["name"]["enum"] for each in own["json"]["anyOf"]] == [[name] for name in names or ()]
        assert (own["begin"], own["end"], own["separator"], own["limit"]) == ("<c>", "</c>", ",", 1)


def test_references_inside_a_tool_schema_still_lead_to_the_same_place() -> None:
    form = guided_decoding(chat(tools=[tool("f", SCHEMA), tool("g", SCHEMA)], tool_choice="required"))
    assert form is not None
    root = form["json"]
    for name, variant in zip("fg", root["items"]["anyOf"], strict=True):
        parameters = resolve(root, variant["properties"]["parameters"]["$ref"])
        assert parameters["required"] == ["city"]
        days = parameters["properties"]["days"]["$ref"]
        assert days == f"#/$defs/{name}/$defs/days"
        assert resolve(root, days) == {"type": "integer", "minimum": 1}


def resolve(root: Any, reference: str) -> Any:
    for step in reference.removeprefix("#/").split("/"):
        root = root[step]
    return root
