from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dynamo.pipeline.guidance import guided_decoding
from dynamo.pipeline.validate import reject_media, validate_chat, validate_completion, validate_embedding
from dynamo.protocols.chat import ChatRequest, Message
from dynamo.protocols.completions import CompletionRequest
from dynamo.protocols.embeddings import EmbeddingRequest
from dynamo.protocols.errors import InvalidRequest
from support.request_bodies import CHAT, COMPLETION, EMBEDDING

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f"}}


def chat(**fields: Any) -> ChatRequest:
    return msgspec.convert({"model": "m", "messages": [USER], **fields}, ChatRequest)


def completion(**fields: Any) -> CompletionRequest:
    return msgspec.convert({"model": "m", "prompt": "p", **fields}, CompletionRequest)


def test_full_requests_pass() -> None:
    validate_chat(msgspec.convert(CHAT, ChatRequest))
    validate_completion(msgspec.convert(COMPLETION, CompletionRequest))
    validate_embedding(msgspec.convert(EMBEDDING, EmbeddingRequest))


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": "  "}, "model"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"n": 2, "temperature": 0}, "n"),
        ({"n": 2, "nvext": {"greed_sampling": True}}, "n"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"min_tokens": 9, "max_completion_tokens": 8, "max_tokens": 10}, "min_tokens"),
        ({"logit_bias": {"word": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"99999999999": 1}}, "logit_bias"),
        ({"logit_bias": {"²": 1}}, "logit_bias"),
        ({"nvext": {"backend_instance_id": 2**64}}, "nvext.backend_instance_id"),
        ({"nvext": {"token_data": []}}, "nvext.token_data"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"echo": True}, "echo"),
        ({"best_of": 2}, "best_of"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"logit_bias": {str(id): 1 for id in range(2049)}, "n": 128}, "logit_bias"),
        ({"logit_bias": {str(id): 1 for id in range(2**18 + 1)}}, "logit_bias"),
        ({"stop": "x" * 8193}, "stop"),
        ({"stop": ["x" * 4096, "y" * 4096, "z"]}, "stop"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"regex": "a"}, "guided_regex": "b"}, "structured_outputs"),
        ({"regex": "a", "guided_regex": "b"}, "regex"),
        ({"regex": "a", "ebnf": "root ::= 'a'"}, "guided_grammar"),
        ({"json_schema": "{"}, "guided_json"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"moderation": {}}, "moderation"),
        ({"chat_template": "{{ x }}"}, "chat_template"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
        ({"chat_template_kwargs": {}, "chat_template_args": {}}, "chat_template_args"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs.chat_template"),
        ({"chat_template_args": {"messages": []}}, "chat_template_args.messages"),
        ({"chat_template_kwargs": {"a": nested(101)}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a": 2**70}}, "chat_template_kwargs"),
        ({"metadata": {"a": nested(300)}}, "metadata"),
        ({"guided_json": {}, "guided_regex": "x"}, "guided_regex"),
        ({"guided_json": {}, "response_format": {"type": "json_object"}}, "response_format"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": "[]"}, "guided_json"),
        ({"guided_json": {"type": "strnig"}}, "guided_json.type"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
        ({"guided_grammar": "(" * 501}, "guided_grammar"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "s"}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"properties": 1}}}},
            "response_format.json_schema.schema.properties",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice.function.name",
        ),
        ({"tools": [TOOL, TOOL]}, "tools[1].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": 1}}}]},
            "tools[0].function.parameters.type",
        ),
        ({"tools": [TOOL], "tool_choice": "required", "guided_regex": "x"}, "guided_regex"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [USER, {"role": "assistant"}]}, "messages[1].content"),
        ({"messages": [USER, {"role": "tool", "content": "x"}]}, "messages[1].tool_call_id"),
        ({"messages": [{"role": "assistant", "audio": {"id": "a"}}]}, "messages[0].audio"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_contradictory_chat_request_is_rejected_by_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        validate_chat(chat(**fields))
    assert caught.value.param == param
    assert param.split(".")[-1] in caught.value.message


@pytest.mark.parametrize(
    "fields",
    [
        {"stop": []},
        {"stop": ["x"] * 32},
        {"tools": [], "tool_choice": "auto"},
        {"tool_choice": "none"},
        {"n": 2, "temperature": 0.1},
        {"modalities": ["text"]},
        {"verbosity": "medium"},
        {"verbosity": "low"},
        {"echo": False, "best_of": 1, "use_beam_search": False},
        {"functions": [], "function_call": "auto"},
        {"prediction": {"type": "content", "content": "x"}},
        {"function_call": None, "functions": None},
        {"guided_json": '{"type": "object"}'},
        {"guided_choice": ["a", "b"]},
        {"messages": [{"role": "function", "name": "f", "content": "x"}]},
        {"messages": [USER, {"role": "assistant", "content": "", "tool_calls": []}]},
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": ""}}]}]},
        {
            "messages": [
                {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "[]"}}]}
            ]
        },
        {
            "messages": [
                {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": '{"a'}}]}
            ]
        },
        {"messages": [{"role": "assistant", "reasoning_content": "x"}]},
        {"continue_final_message": True, "add_generation_prompt": False},
        {"tools": [TOOL], "tool_choice": "auto", "guided_regex": "x"},
    ],
    ids=lambda value: str(value)[:50],
)
def test_fields_without_effect_are_accepted(fields: dict[str, Any]) -> None:
    validate_chat(chat(**fields))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt[1]"),
        ({"prompt": [[1], []]}, "prompt[1]"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [1, [2]]}, "prompt"),
        ({"suffix": "end"}, "suffix"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"prompt": ["a"] * 65, "n": 2}, "n"),
        ({"prompt": ["a", "b"], "nvext": {"token_data": [1]}}, "nvext.token_data"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_contradictory_completion_request_is_rejected_by_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        validate_completion(completion(**fields))
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1, 2], [3]], [[1, 2], [3]])],
)
def test_a_prompt_may_be_written_in_four_ways(prompt: Any, prompts: list[Any]) -> None:
    request = completion(prompt=prompt, suffix="")
    validate_completion(request)
    assert request.prompts() == prompts


@pytest.mark.parametrize("value", ["", [], [""], ["a", 1], ["a"] * 2049])
def test_an_embedding_needs_inputs_of_one_kind(value: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^input"):
        validate_embedding(msgspec.convert({"model": "m", "input": value}, EmbeddingRequest))


def test_a_text_model_rejects_images_by_path() -> None:
    image = {"type": "image_url", "image_url": {"url": "http://x"}}
    messages = [USER, {"role": "user", "content": [{"type": "text", "text": "see"}, image]}]
    with pytest.raises(InvalidRequest, match=r"messages\[1\].content\[1\]: .* not `image_url`"):
        reject_media(msgspec.convert(messages, list[Message]))
    reject_media(msgspec.convert(messages[:1], list[Message]))


def test_json_in_the_arguments_of_tool_calls_is_bounded() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a":[' + "[1]," * 1000 + "1]}"}}
    few, many = ([{"role": "assistant", "tool_calls": [call] * count}] for count in (60, 70))
    validate_chat(chat(messages=few))
    with pytest.raises(InvalidRequest, match="arguments of tool calls has too many"):
        validate_chat(chat(messages=many))


def large_schema(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"property{index}": {"type": "string"} for index in range(count)}}


def tool_of(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": schema}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_grammar": "start: " + " | ".join(f'"w{index}"' for index in range(20_000))}, "guided_grammar"),
        ({"guided_regex": "a" * 200_000}, "guided_regex"),
        ({"guided_choice": ["a"] * 5000}, "guided_choice"),
        ({"guided_choice": ["a" * 100] * 2000}, "guided_choice"),
        ({"guided_json": large_schema(5000)}, "guided_json"),
        ({"guided_json": msgspec.json.encode(large_schema(5000)).decode()}, "guided_json"),
        ({"structured_outputs": {"choice": ["a"] * 5000}}, "guided_choice"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": large_schema(5000)}}},
            "response_format.json_schema.schema",
        ),
        ({"tools": [tool_of(large_schema(5000))], "tool_choice": "required"}, "tools"),
        ({"documents": [{"a": [1] * 70_000}]}, "documents"),
        ({"messages": [USER] * 5000}, "messages"),
    ],
)
def test_what_would_take_long_to_compile_or_render_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        validate_chat(chat(**fields))
    assert caught.value.param == param


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [tool_of(large_schema(5000))]},
        {"tools": [tool_of(large_schema(1000))], "tool_choice": "required"},
        {"guided_choice": [f"choice {index}" for index in range(4096)]},
        {"messages": [USER] * 4096},
    ],
)
def test_large_requests_that_do_no_harm_pass(fields: dict[str, Any]) -> None:
    validate_chat(chat(**fields))


@pytest.mark.parametrize(
    ("name", "ours", "value"),
    [
        ("regex", "guided_regex", "[0-9]+"),
        ("json_schema", "guided_json", '{"type": "object"}'),
        ("json_schema", "guided_json", {"type": "object"}),
        ("ebnf", "guided_grammar", 'root ::= "yes" | "no"'),
    ],
)
def test_constraints_by_the_names_of_sglang_are_followed(name: str, ours: str, value: Any) -> None:
    by_theirs, by_ours = chat(**{name: value}), chat(**{ours: value})
    for request in (by_theirs, by_ours):
        validate_chat(request)
    assert guided_decoding(by_theirs) == guided_decoding(by_ours) is not None
