from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dynamo.protocols.body import BodyDecoder
from dynamo.protocols.chat import ChatRequest
from dynamo.protocols.errors import InvalidRequest
from support.request_bodies import BODIES, CHAT

USER = {"role": "user", "content": "hi"}


def refused(body: bytes) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        BodyDecoder(ChatRequest).decode(body)
    return caught.value


def chat(**fields: Any) -> bytes:
    return msgspec.json.encode({"model": "m", "messages": [USER], **fields})


@pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.__name__)
def test_a_full_body_survives_decoding_and_encoding(kind: type[Any]) -> None:
    decoder = BodyDecoder(kind)
    request = decoder.decode(msgspec.json.encode(BODIES[kind]))
    assert decoder.decode(msgspec.json.encode(request)) == request


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"temperature": 3.5}, "temperature", "temperature: must be at most 2, got 3.5."),
        ({"temperature": -1}, "temperature", "temperature: must be at least 0, got -1."),
        ({"temperature": "1"}, "temperature", "temperature: expected number or null, got string."),
        ({"top_p": -1}, "top_p", "top_p: must be at least 0, got -1."),
        ({"top_p": 1.01}, "top_p", "top_p: must be at most 1, got 1.01."),
        ({"top_k": -2}, "top_k", "top_k: must be at least -1, got -2."),
        ({"min_p": 2}, "min_p", "min_p: must be at most 1, got 2."),
        ({"presence_penalty": 2.5}, "presence_penalty", "presence_penalty: must be at most 2, got 2.5."),
        ({"frequency_penalty": -3}, "frequency_penalty", "frequency_penalty: must be at least -2, got -3."),
        ({"repetition_penalty": 0}, "repetition_penalty", "repetition_penalty: must be greater than 0, got 0."),
        ({"n": 0}, "n", "n: must be at least 1, got 0."),
        ({"n": 129}, "n", "n: must be at most 128, got 129."),
        ({"n": 1.5}, "n", "n: expected integer or null, got number."),
        ({"n": True}, "n", "n: expected integer or null, got boolean."),
        ({"max_tokens": 0}, "max_tokens", "max_tokens: must be at least 1, got 0."),
        ({"max_tokens": 2**21}, "max_tokens", "max_tokens: must be at most 1048576, got 2097152."),
        ({"top_logprobs": 21}, "top_logprobs", "top_logprobs: must be at most 20, got 21."),
        ({"logit_bias": {"1": 101}}, "logit_bias[...]", "logit_bias[...]: must be at most 100."),
        ({"stop": ""}, "stop", "stop: the length must be at least 1."),
        ({"stop": ["x"] * 33}, "stop", "stop: the length must be at most 32."),
        ({"stop": [1, None]}, "stop[1]", "stop[1]: expected integer or string, got null."),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]", "stop_token_ids[0]: must be at least 0, got -1."),
        ({"user": ""}, "user", "user: the length must be at least 1."),
        ({"seed": 2**63}, "seed", "seed: must be at most 9223372036854775807, got 9223372036854775808."),
        ({"messages": []}, "messages", "messages: the length must be at least 1."),
        (
            {"messages": [{"role": "user", "content": 5}]},
            "messages[0].content",
            "messages[0].content: expected string or list of parts or null, got integer.",
        ),
        (
            {"messages": [USER, {"role": "robot", "content": ""}]},
            "messages[1].role",
            "messages[1].role: 'robot' is not one of 'assistant', 'developer', 'function', 'system', 'tool', 'user'.",
        ),
        (
            {"messages": [{"content": "x"}]},
            "messages[0].role",
            "Missing required parameter: `messages[0].role`.",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "video", "video": 1}]}]},
            "messages[0].content[0].type",
            "messages[0].content[0].type: 'video' is not one of 'file', 'image_url', 'input_audio', 'refusal', 'text'.",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools[0].function.name",
            "tools[0].function.name: must be 1 to 128 letters, digits, `_` or `-`, got 'a b'.",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "ab\n"}}]},
            "tools[0].function.name",
            "tools[0].function.name: must be 1 to 128 letters, digits, `_` or `-`, got 'ab\\n'.",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
            "tools[0].function.parameters",
            "tools[0].function.parameters: expected object or null, got list.",
        ),
        (
            {"tools": [{"type": "magic", "magic": {"name": "x"}}]},
            "tools[0].type",
            "tools[0].type: 'magic' is not one of 'custom', 'function'.",
        ),
        ({"tool_choice": "any"}, "tool_choice", "tool_choice: 'any' is not one of 'auto', 'none', 'required'."),
        (
            {"response_format": {"type": "xml"}},
            "response_format.type",
            "response_format.type: 'xml' is not one of 'json_object', 'json_schema', 'text'.",
        ),
        ({"stream_options": {"x": 1}}, "stream_options.x", "Unsupported parameter(s): `stream_options.x`"),
        ({"nvext": {"guided_json": {}}}, "nvext.guided_json", "Unsupported parameter(s): `nvext.guided_json`"),
        ({"x": 1, "temperature": 0.5, "y": 2}, "x", "Unsupported parameter(s): `x`, `y`"),
        ({"x": 1, "nvext": {"agent_hints": {"q": 1}}}, "x", "Unsupported parameter(s): `x`, `nvext.agent_hints.q`"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_field_is_named_with_its_path(fields: dict[str, Any], param: str, message: str) -> None:
    error = refused(chat(**fields))
    assert error.message == message
    assert error.param == param
    assert error.code is not None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "The request body is empty; a JSON object was expected."),
        (b" \n", "The request body is empty; a JSON object was expected."),
        (b"null", "The request body: expected object, got null."),
        (b"[]", "The request body: expected object, got list."),
        (b"{}", "Missing required parameter: `model`."),
        (b'{"model": "m"', "The request body is not valid JSON: it ends too early, after 13 bytes."),
        (b'{"x": "m"', "The request body is not valid JSON: it ends too early, after 9 bytes."),
        (b'{"model":\n tru}', "The request body is not valid JSON: invalid character at line 2, column 6 (byte 15)."),
        (
            b'{"model":"m",}',
            "The request body is not valid JSON: trailing comma in object at line 1, column 14 (byte 13).",
        ),
        (
            b'{"temperature": NaN}',
            "The request body is not valid JSON: invalid character at line 1, column 17 (byte 16).",
        ),
        (b'{"temperature": 1e999}', "temperature: number out of range."),
        (b'{"n": ' + b"9" * 6000 + b"}", "n: integer value out of range."),
        (b'{"n": 99999999999999999999999}', "n: must be at most 128, got 99999999999999999999999."),
        (b'{"model": "\xff"}', "The request body is not valid UTF-8."),
        (b'{"x": 1, "model": "\xff"}', "The request body is not valid UTF-8."),
        (b'{"model": "\\ud83d"}', "The request body is not valid JSON: unpaired surrogate escape at byte 11."),
        (b'{"metadata": {"a":' + b"[" * 5000, "The request body is nested too deeply."),
        (b'{"unknown": ' + b"[" * 200_000, "The request body is nested too deeply."),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_body_that_is_not_a_request_is_rejected_with_the_reason(body: bytes, message: str) -> None:
    assert refused(body).message == message


def test_unknown_fields_can_be_ignored() -> None:
    decoder = BodyDecoder(ChatRequest)
    known = decoder.decode(chat(nvext={"top_k": 3}))
    ignored: list[str] = []
    assert decoder.decode(chat(x=1, nvext={"top_k": 3, "y": {"z": []}}), ignored) == known
    assert ignored == ["x", "nvext.y"]
    with pytest.raises(InvalidRequest, match="temperature: must be at most 2"):
        decoder.decode(chat(x=1, temperature=3), [])


def test_unknown_fields_in_messages_are_dropped() -> None:
    unknown: Any = {"annotations": [], "audio": None, "function_call": None, "new": 1}
    message = {"role": "assistant", "content": "x", **unknown}
    request = BodyDecoder(ChatRequest).decode(chat(messages=[USER, message]))
    assert request.messages[1].content == "x"


def test_duplicate_keys_keep_the_last_value() -> None:
    body = msgspec.json.encode(CHAT)[:-1] + b',"temperature":0.25}'
    assert BodyDecoder(ChatRequest).decode(body).temperature == 0.25


def test_the_response_to_a_huge_invalid_body_is_short() -> None:
    error = refused(chat(**{f"{number:03}" + "x" * 500: 1 for number in range(30)}))
    assert error.message.endswith(" and 10 more")
    assert len(error.message) < 1500
