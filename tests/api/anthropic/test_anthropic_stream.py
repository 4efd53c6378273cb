from __future__ import annotations

from typing import Any

import anthropic
import httpx2
import msgspec
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from dynamo.api.anthropic.answers import AnthropicError, message_of
from dynamo.api.anthropic.stream import PING, AnthropicStream
from dynamo.protocols.answers import (
    AnswerMessage,
    ChatChoice,
    ChatCompletion,
    CompletionUsage,
    CustomToolCall,
    FunctionToolCall,
)
from dynamo.protocols.chat import FunctionCall
from dynamo.protocols.errors import CannotConnect, InvalidRequest, ModelNotFound, ResourceExhausted
from support.named_events import named_events

USAGE = CompletionUsage(
    prompt_tokens=9, completion_tokens=5, total_tokens=14, prompt_tokens_details={"cached_tokens": 4}
)
official = TypeAdapter[Any](RawMessageStreamEvent)


def events(raw: bytes) -> list[dict[str, Any]]:
    return named_events(raw, official)


def everything(writer: AnthropicStream) -> bytes:
    return b"".join(
        (
            writer.start(),
            writer.reasoning("Let me "),
            writer.reasoning("think."),
            writer.text('He said "h'),
            writer.text("i\n☃"),
            writer.tool_start(0, "t0", "weather"),
            writer.tool_arguments(0, '{"city":'),
            writer.tool_arguments(0, '"Lyon"}'),
            writer.tool_start(1, "t1", "time"),
            writer.finish("tool_calls", USAGE),
        )
    )


def client_for(body: bytes, kind: str, status: int = 200) -> anthropic.Anthropic:
    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, content=body, headers={"content-type": kind})

    http = anthropic.DefaultHttpxClient(transport=httpx2.MockTransport(answer))
    return anthropic.Anthropic(api_key="k", base_url="http://test", http_client=http, max_retries=0)


def ask(client: anthropic.Anthropic) -> Message:
    return client.messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": "hi"}])


def test_blocks_follow_each_other_and_are_numbered() -> None:
    found = [
        (event["type"].removeprefix("content_block_"), event.get("index"))
        for event in events(everything(AnthropicStream("msg_1", "m", 9)))
    ]
    assert found == [
        ("message_start", None),
        *[("start", 0), ("delta", 0), ("delta", 0), ("delta", 0), ("stop", 0)],
        *[("start", 1), ("delta", 1), ("delta", 1), ("stop", 1)],
        *[("start", 2), ("delta", 2), ("delta", 2), ("stop", 2)],
        *[("start", 3), ("stop", 3)],
        ("message_delta", None),
        ("message_stop", None),
    ]


def test_the_official_client_puts_the_stream_together() -> None:
    raw = everything(AnthropicStream("msg_1", "m", 9)).replace(
        b"\n\nevent: content", b"\n\n" + PING + b"event: content", 1
    )
    with (
        client_for(raw, "text/event-stream") as client,
        client.messages.stream(model="m", max_tokens=5, messages=[{"role": "user", "content": "hi"}]) as received,
    ):
        text = "".join(received.text_stream)
        final = received.get_final_message()
    assert text == 'He said "hi\n☃'
    assert [block.type for block in final.content] == ["thinking", "text", "tool_use", "tool_use"]
    thinking, _, first, second = final.content
    assert thinking.type == "thinking"
    assert thinking.thinking == "Let me think."
    assert first.type == second.type == "tool_use"
    assert (first.id, first.name, first.input) == ("t0", "weather", {"city": "Lyon"})
    assert (second.name, second.input) == ("time", {})
    assert (final.id, final.model, final.stop_reason) == ("msg_1", "m", "tool_use")
    assert (final.usage.input_tokens, final.usage.cache_read_input_tokens, final.usage.output_tokens) == (5, 4, 5)


@pytest.mark.parametrize(
    ("finish", "sequence", "reason", "reported"),
    [
        ("stop", None, "end_turn", None),
        ("stop", "END", "stop_sequence", "END"),
        ("length", None, "max_tokens", None),
        ("tool_calls", "END", "tool_use", None),
        ("content_filter", None, "refusal", None),
    ],
)
def test_the_reason_of_the_end_is_said_in_anthropics_words(
    finish: Any, sequence: str | None, reason: str, reported: str | None
) -> None:
    writer = AnthropicStream("msg_1", "m", 9)
    delta = events(writer.start() + writer.text("x") + writer.finish(finish, USAGE, sequence))[-2]["delta"]
    assert delta == {"stop_reason": reason, "stop_sequence": reported}
    whole = message_of(completion(AnswerMessage(content="x"), finish), "msg_1", sequence)
    assert (whole.stop_reason, whole.stop_sequence) == (reason, reported)


def test_hidden_thoughts_are_a_block_without_words() -> None:
    found = events(everything(AnthropicStream("msg_1", "m", 9, hide_thinking=True)))
    assert [event["type"] for event in found if event.get("index") == 0] == [
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
    ]
    assert "think." not in str(found)


def test_arguments_need_an_open_call() -> None:
    writer = AnthropicStream("msg_1", "m", 9)
    writer.tool_start(0, "t", "f")
    writer.text("x")
    with pytest.raises(ValueError, match="not open"):
        writer.tool_arguments(0, "{}")


def test_an_error_in_the_stream_reaches_the_client_as_its_exception() -> None:
    writer = AnthropicStream("msg_1", "m", 9)
    raw = writer.start() + writer.text("x") + writer.fail(CannotConnect("no worker left"), "req-1")
    with client_for(raw, "text/event-stream") as client:
        received = client.messages.create(
            model="m", max_tokens=5, messages=[{"role": "user", "content": "hi"}], stream=True
        )
        with pytest.raises(anthropic.APIStatusError, match="no worker left"):
            list(received)


@pytest.mark.parametrize(
    ("error", "word", "raised"),
    [
        (InvalidRequest("bad", "x"), "invalid_request_error", anthropic.BadRequestError),
        (ModelNotFound("none"), "not_found_error", anthropic.NotFoundError),
        (ResourceExhausted("busy"), "overloaded_error", anthropic.InternalServerError),
        (CannotConnect("gone"), "api_error", anthropic.InternalServerError),
    ],
)
def test_errors_carry_anthropics_word_for_them(error: Any, word: str, raised: type[Exception]) -> None:
    body = AnthropicError.of(error, "req-1")
    assert body.error.type == word
    with (
        client_for(msgspec.json.encode(body), "application/json", error.status) as client,
        pytest.raises(raised, match=error.message),
    ):
        ask(client)


def completion(message: AnswerMessage, finish: Any) -> ChatCompletion:
    choice = ChatChoice(index=0, message=message, finish_reason=finish)
    return ChatCompletion(id="chatcmpl-1", created=1, model="m", choices=[choice], usage=USAGE)


def test_the_whole_answer_is_what_the_client_expects() -> None:
    calls: list[FunctionToolCall | CustomToolCall] = [
        FunctionToolCall(id="t0", function=FunctionCall("weather", '{"city":"Lyon"}')),
        FunctionToolCall(id="t1", function=FunctionCall("time", '{"cut')),
    ]
    message = AnswerMessage(content="hi", reasoning_content="hm", tool_calls=calls)
    body = msgspec.json.encode(message_of(completion(message, "length"), "msg_1"))
    Message.model_validate_json(body)
    with client_for(body, "application/json") as client:
        answer = ask(client)
    assert [block.type for block in answer.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert answer.stop_reason == "max_tokens"
