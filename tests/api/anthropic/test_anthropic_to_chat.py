from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dynamo.api.anthropic.request import CountTokensRequest, MessagesRequest
from dynamo.api.anthropic.to_chat import anthropic_to_chat, hides_thinking, without_preamble
from dynamo.pipeline.validate import validate_chat
from dynamo.protocols.chat import ChatRequest
from dynamo.protocols.errors import InvalidRequest
from support.request_bodies import COUNT, MESSAGES, SCHEMA

USER = {"role": "user", "content": "hi"}
TOOL = {"name": "f", "input_schema": {"type": "object"}}


def request(**fields: Any) -> MessagesRequest:
    return msgspec.convert({"model": "m", "max_tokens": 5, "messages": [USER], **fields}, MessagesRequest)


def translated(**fields: Any) -> ChatRequest:
    chat = anthropic_to_chat(request(**fields))
    validate_chat(chat)
    return chat


def test_a_full_request_is_translated_to_a_chat_request() -> None:
    fields = msgspec.to_builtins(anthropic_to_chat(msgspec.convert(MESSAGES, MessagesRequest)))
    assert fields.pop("messages") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "Let me look."}],
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "t1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Lyon"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "sunny"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "So?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
            ],
        },
    ]
    assert fields == {
        "model": "m",
        "stream": True,
        "max_tokens": 64,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "stop": ["END"],
        "tools": [{"type": "function", "function": {"name": "weather", "description": "d", "parameters": SCHEMA}}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "reasoning_effort": "low",
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}},
    }


def test_counting_tokens_reads_the_same_prompt() -> None:
    counted = anthropic_to_chat(msgspec.convert(COUNT, CountTokensRequest))
    asked = anthropic_to_chat(msgspec.convert(MESSAGES, MessagesRequest))
    assert (counted.messages, counted.tools, counted.thinking) == (asked.messages, asked.tools, asked.thinking)
    assert counted.max_tokens is None


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
    ],
)
def test_tool_choices(choice: dict[str, Any], expected: Any) -> None:
    assert msgspec.to_builtins(translated(tools=[TOOL], tool_choice=choice).tool_choice) == expected


@pytest.mark.parametrize(
    ("block", "content"),
    [
        ({}, ""),
        ({"content": "x"}, "x"),
        ({"content": []}, ""),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "ab"),
        ({"content": "no such city", "is_error": True}, "Error: no such city"),
        (
            {"content": [{"type": "image", "source": {"type": "url", "url": "http://x"}}]},
            [{"type": "image_url", "image_url": {"url": "http://x"}}],
        ),
    ],
)
def test_tool_results(block: dict[str, Any], content: Any) -> None:
    message = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", **block}]}
    assert msgspec.to_builtins(translated(messages=[message]).messages) == [
        {"role": "tool", "tool_call_id": "t", "content": content}
    ]


def test_a_turn_of_redacted_thinking_is_an_empty_answer() -> None:
    message = {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}
    assert msgspec.to_builtins(translated(messages=[USER, message]).messages)[1] == {"role": "assistant", "content": ""}


def test_a_final_assistant_message_is_continued() -> None:
    chat = translated(messages=[USER, {"role": "assistant", "content": "The answer is ("}])
    assert (chat.continue_final_message, chat.add_generation_prompt) == (True, False)
    assert translated().continue_final_message is None
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]}
    assert translated(messages=[USER, call]).continue_final_message is None


def test_thinking_can_be_hidden() -> None:
    assert hides_thinking(request(thinking={"type": "adaptive", "display": "omitted"}))
    assert not hides_thinking(request(thinking={"type": "adaptive"}))
    assert not hides_thinking(request())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"mcp_servers": []}, "mcp_servers"),
        ({"container": "c"}, "container"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{"name": "f", "input_schema": {"type": "x"}}]}, "tools[0].input_schema.type"),
        (
            {"tools": [{"name": "web_search", "type": "web_search_20250305"}], "tool_choice": {"type": "any"}},
            "tools[0].type",
        ),
        ({"tools": [{"name": "bash", "type": "bash_20250124"}]}, "tools[0].type"),
        ({"tools": [{"name": "edit", "type": "text_editor_20250728"}]}, "tools[0].type"),
        ({"tools": [{"name": "memory", "type": "memory_20250818"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"enum": 1}}}},
            "output_config.format.schema.enum",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]}]},
            "messages[0].content[0]",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "t"}]}]},
            "messages[0].content[0]",
        ),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_an_unsupported_request_is_rejected_by_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        translated(**fields)
    assert caught.value.param == param
    assert param in caught.value.message


BILLING = "x-anthropic-billing-header: cc_version=2.1.197.fa0; cc_entrypoint=sdk-cli;"


@pytest.mark.parametrize(
    ("system", "kept"),
    [
        ([{"type": "text", "text": BILLING}, {"type": "text", "text": "Be brief."}], "Be brief."),
        ([{"type": "text", "text": f"{BILLING}\nBe brief."}], "Be brief."),
        (f"{BILLING}\nBe brief.", "Be brief."),
        (f"Be brief.\n{BILLING}", f"Be brief.\n{BILLING}"),
        (f" {BILLING}", f" {BILLING}"),
        (BILLING, None),
        ([{"type": "text", "text": BILLING}], None),
        (None, None),
    ],
)
def test_only_the_line_for_billing_at_the_beginning_is_left_out(system: Any, kept: str | None) -> None:
    chat = anthropic_to_chat(without_preamble(request(system=system)))
    assert [each.content for each in chat.messages if each.role == "system"] == ([kept] if kept else [])


@pytest.mark.parametrize("system", ["Be brief.", [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]])
def test_a_request_without_that_line_is_unchanged(system: Any) -> None:
    asked = request(system=system)
    assert without_preamble(asked) == asked
