from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dynamo.api.responses.request import ResponsesRequest
from dynamo.api.responses.to_chat import responses_to_chat, with_responses_names
from dynamo.pipeline.validate import validate_chat
from dynamo.protocols.chat import ChatRequest
from dynamo.protocols.errors import InvalidRequest
from support.request_bodies import RESPONSES, SCHEMA


def translated(**fields: Any) -> ChatRequest:
    chat = responses_to_chat(msgspec.convert({"model": "m", "input": "hi", **fields}, ResponsesRequest))
    validate_chat(chat)
    return chat


def messages(items: list[Any], **fields: Any) -> Any:
    return msgspec.to_builtins(translated(input=items, **fields).messages)


def call(number: int) -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"c{number}", "name": "f", "arguments": "{}"}


def called(*numbers: int) -> list[dict[str, Any]]:
    return [{"id": f"c{n}", "type": "function", "function": {"name": "f", "arguments": "{}"}} for n in numbers]


def test_a_text_is_one_user_message_after_the_instructions() -> None:
    assert msgspec.to_builtins(translated(instructions="Be brief.").messages) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
    ]


def test_reasoning_text_and_calls_of_one_turn_become_one_message() -> None:
    items = [
        {"role": "user", "content": "hi"},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "short"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "one"}]},
        call(1),
        call(2),
        {"type": "function_call_output", "call_id": "c1", "output": "x"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "y"}]},
        call(3),
    ]
    assert messages(items) == [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "one"}],
            "tool_calls": called(1, 2),
            "reasoning_content": "short",
        },
        {"role": "tool", "content": "x", "tool_call_id": "c1"},
        {"role": "tool", "content": [{"type": "text", "text": "y"}], "tool_call_id": "c2"},
        {"role": "assistant", "tool_calls": called(3)},
    ]


def test_full_reasoning_text_is_preferred_to_its_summary() -> None:
    reasoning = {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "short"}],
        "content": [{"type": "reasoning_text", "text": "long"}],
    }
    assert messages([{"role": "user", "content": "hi"}, reasoning])[1] == {
        "role": "assistant",
        "reasoning_content": "long",
    }


def test_two_answers_in_a_row_stay_two() -> None:
    said = [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert messages(said) == said


def test_images_become_parts() -> None:
    part = {"type": "input_image", "image_url": "data:x", "detail": "low"}
    assert messages([{"role": "user", "content": [part]}])[0]["content"] == [
        {"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}}
    ]


def test_the_options_of_a_full_request_are_carried_over() -> None:
    chat = responses_to_chat(msgspec.convert(RESPONSES, ResponsesRequest))
    fields = msgspec.to_builtins(chat)
    assert fields["max_completion_tokens"] == 64
    assert (fields["temperature"], fields["top_p"], fields["stream"]) == (0.5, 0.9, True)
    assert (fields["logprobs"], fields["top_logprobs"]) == (True, 2)
    assert fields["reasoning_effort"] == "high"
    assert fields["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "s", "schema": SCHEMA, "strict": True},
    }
    assert fields["tools"] == [
        {
            "type": "function",
            "function": {"name": "weather", "description": "d", "parameters": SCHEMA, "strict": True},
        }
    ]
    assert fields["tool_choice"] == {"type": "function", "function": {"name": "weather"}}


def test_logprobs_can_be_requested_by_include() -> None:
    assert translated(include=["message.output_text.logprobs"]).logprobs is True
    assert translated().logprobs is None


def test_json_without_a_schema_and_plain_text() -> None:
    assert msgspec.to_builtins(translated(text={"format": {"type": "json_object"}}).response_format) == {
        "type": "json_object"
    }
    assert translated(text={"format": {"type": "text"}}).response_format is None


TOOL = {"type": "function", "name": "f"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"context_management": []}, "context_management"),
        ({"moderation": {}}, "moderation"),
        ({"text": {"format": {"type": "json_schema", "name": "s", "schema": {"type": 1}}}}, "text.format.schema.type"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tools[0].type"),
        ({"tools": [{"type": "computer"}]}, "tools[0].type"),
        ({"tools": [{"type": "custom"}]}, "tools[0].name"),
        (
            {"tools": [{"type": "custom", "name": "x", "format": {"type": "grammar", "syntax": "lark"}}]},
            "tools[0].format.definition",
        ),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}]}, "tools[0].tools[0].name"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{**TOOL, "parameters": {"required": 1}}]}, "tools[0].parameters.required"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice.name"),
        ({"input": [{"content": "x"}]}, "input[0].role"),
        ({"input": [{"id": "msg_1"}]}, "input[0]"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        ({"nvext": {"extra_fields": ["completion_token_ids"]}}, "nvext.extra_fields"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_an_unsupported_request_is_rejected_by_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        translated(**fields)
    assert caught.value.param == param
    assert param in caught.value.message


@pytest.mark.parametrize("name", ["metadata", "user", "prompt_cache_key"])
def test_what_a_response_repeats_is_bounded(name: str) -> None:
    for length, refused in ((65_500, False), (65_600, True)):
        value: Any = {"key": "v" * (length - 3)} if name == "metadata" else "v" * length
        if refused:
            with pytest.raises(InvalidRequest, match="at most 65536 characters") as caught:
                translated(input="x", **{name: value})
            assert caught.value.param == name
        else:
            translated(input="x", **{name: value})


def test_later_errors_use_the_field_names_of_the_responses_api() -> None:
    error = InvalidRequest("max_completion_tokens=9: shorten the messages", "max_completion_tokens", "c")
    told = with_responses_names(error)
    assert (told.message, told.param, told.code) == ("max_output_tokens=9: shorten the input", "max_output_tokens", "c")
    assert with_responses_names(InvalidRequest("messages", "messages")).param == "input"
    assert with_responses_names(InvalidRequest("x")).param is None
