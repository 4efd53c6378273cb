from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2
import msgspec
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from dynamo.api.responses.answers import response_of
from dynamo.api.responses.request import ResponsesRequest
from dynamo.api.responses.stream import ResponsesStream
from dynamo.protocols.answers import (
    AnswerMessage,
    ChatChoice,
    ChatCompletion,
    ChatLogprob,
    ChatLogprobs,
    CompletionUsage,
    FunctionToolCall,
    TokenAlternative,
)
from dynamo.protocols.chat import FunctionCall
from support.named_events import named_events
from support.request_bodies import RESPONSES

USAGE = CompletionUsage(
    prompt_tokens=9,
    completion_tokens=5,
    total_tokens=14,
    prompt_tokens_details={"cached_tokens": 4},
    completion_tokens_details={"reasoning_tokens": 2},
)
LOGPROB = ChatLogprob(
    token="a", logprob=-0.5, bytes=[97], top_logprobs=[TokenAlternative(token="b", logprob=-1.5, bytes=[98])]
)
BARE = ResponsesRequest(model="m", input="hi")
FULL = msgspec.convert(RESPONSES, ResponsesRequest)
official = TypeAdapter[Any](ResponseStreamEvent)


def stream(request: ResponsesRequest = BARE) -> ResponsesStream:
    return ResponsesStream(request, "resp_1", "m", 1700000000)


def events(raw: bytes) -> list[dict[str, Any]]:
    return named_events(raw, official)


def everything(writer: ResponsesStream) -> bytes:
    return b"".join(
        (
            writer.start(),
            writer.reasoning("Let me "),
            writer.reasoning("think."),
            writer.text('He said "h', [LOGPROB]),
            writer.text("i\n☃"),
            writer.tool_start(0, "call_0", "weather"),
            writer.tool_arguments(0, '{"city":'),
            writer.tool_arguments(0, '"Lyon"}'),
            writer.tool_start(1, "call_1", "time"),
            writer.tool_arguments(1, "{}"),
            writer.finish("tool_calls", USAGE),
        )
    )


def client_for(body: bytes, kind: str) -> openai.OpenAI:
    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, content=body, headers={"content-type": kind})

    http = openai.DefaultHttpxClient(transport=httpx2.MockTransport(answer))
    return openai.OpenAI(api_key="k", base_url="http://test/v1", http_client=http)


def test_every_event_is_one_the_client_knows_and_they_are_numbered_in_order() -> None:
    for request in (BARE, FULL):
        found = events(everything(stream(request)))
        assert [event["sequence_number"] for event in found] == list(range(len(found)))


def test_the_order_of_events_is_the_published_one() -> None:
    names = [event["type"].removeprefix("response.") for event in events(everything(stream()))]
    assert names == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done"),
        "completed",
    ]


def test_each_event_of_an_item_carries_its_id_and_index() -> None:
    items: dict[int, str] = {}
    for event in events(everything(stream())):
        if "item" in event:
            assert items.setdefault(event["output_index"], event["item"]["id"]) == event["item"]["id"]
        elif "item_id" in event:
            assert items[event["output_index"]] == event["item_id"]
    assert list(items) == [0, 1, 2, 3]
    assert len(set(items.values())) == 4


def test_the_official_client_puts_the_stream_together() -> None:
    with (
        client_for(everything(stream()), "text/event-stream") as client,
        client.responses.stream(model="m", input="hi") as received,
    ):
        deltas = [event.delta for event in received if event.type == "response.output_text.delta"]
        final = received.get_final_response()
    assert deltas == ['He said "h', "i\n☃"]
    assert final.output_text == 'He said "hi\n☃'
    assert final.status == "completed"
    reasoning, message, *calls = final.output
    assert reasoning.type == "reasoning"
    assert reasoning.content is not None
    assert reasoning.content[0].text == "Let me think."
    assert message.type == "message"
    assert [(call.call_id, call.name, call.arguments) for call in calls if call.type == "function_call"] == [
        ("call_0", "weather", '{"city":"Lyon"}'),
        ("call_1", "time", "{}"),
    ]
    assert final.usage is not None
    assert (final.usage.input_tokens, final.usage.output_tokens, final.usage.total_tokens) == (9, 5, 14)
    assert final.usage.input_tokens_details.cached_tokens == 4
    assert final.usage.output_tokens_details.reasoning_tokens == 2


@pytest.mark.parametrize(("reason", "detail"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
def test_an_answer_that_was_cut_off_is_incomplete(reason: str, detail: str) -> None:
    writer = stream()
    last = events(writer.start() + writer.text("x") + writer.finish(reason, USAGE))[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": detail}
    assert last["response"]["output"][0]["status"] == "incomplete"


def test_a_failure_ends_the_open_item_and_says_why() -> None:
    writer = stream()
    *_, done, last = events(writer.start() + writer.text("x") + writer.fail("the engine stopped"))
    assert done["item"]["status"] == "incomplete"
    assert last["type"] == "response.failed"
    assert last["response"]["error"] == {"code": "server_error", "message": "the engine stopped"}


def test_an_empty_answer_is_a_stream_too() -> None:
    writer = stream()
    assert [event["type"] for event in events(writer.start() + writer.finish("stop", USAGE))] == [
        "response.created",
        "response.in_progress",
        "response.completed",
    ]


@pytest.mark.parametrize("call", [lambda s: s.tool_arguments(0, "x"), lambda s: s.tool_arguments(1, "x")])
def test_arguments_need_an_open_call(call: Callable[[ResponsesStream], bytes]) -> None:
    writer = stream()
    writer.tool_start(0, "c", "f")
    writer.tool_start(2, "d", "g")
    with pytest.raises(ValueError, match="not open"):
        call(writer)


def test_the_whole_answer_holds_the_same_as_the_stream() -> None:
    writer = stream(FULL)
    everything(writer)
    message = AnswerMessage(
        content='He said "hi\n☃',
        reasoning_content="Let me think.",
        tool_calls=[
            FunctionToolCall(id="call_0", function=FunctionCall("weather", '{"city":"Lyon"}')),
            FunctionToolCall(id="call_1", function=FunctionCall("time", "{}")),
        ],
    )
    choice = ChatChoice(index=0, message=message, finish_reason="tool_calls", logprobs=ChatLogprobs(content=[LOGPROB]))
    chat = ChatCompletion(id="chatcmpl-1", created=1700000000, model="m", choices=[choice], usage=USAGE)
    whole = response_of(FULL, "resp_1", chat)
    assert whole == writer.response
    Response.model_validate_json(msgspec.json.encode(whole))
    with client_for(msgspec.json.encode(whole), "application/json") as client:
        answer = client.responses.create(model="m", input="hi")
    assert answer.output_text == 'He said "hi\n☃'
    assert answer.instructions == "Be brief."
