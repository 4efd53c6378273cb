"""The lines of a batch."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.cli.run.prompts import BadLine, BatchPrompt, read_prompt
from dynamo.protocols.chat import ChatRequest
from dynamo.protocols.completions import CompletionRequest
from dynamo.protocols.errors import InvalidRequest, Unknown
from dynamo.serving.ask import Answer, RequestDefaults
from dynamo.serving.request_template import RequestTemplate

ANSWER = Answer(
    body={
        "choices": [{"index": 0, "message": {"content": "Paris."}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 2},
    },
    time_to_first_token=0.01,
    elapsed=1.5661,
)


def read(line: str | bytes, template: RequestTemplate | None = None) -> BatchPrompt:
    data = line.encode() if isinstance(line, str) else line
    return read_prompt(data, model="m", defaults=RequestDefaults(max_completion_tokens=9), template=template)


def openai_line(**changed: object) -> str:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    line = {"custom_id": "a-1", "method": "POST", "url": "/v1/chat/completions", "body": body} | changed
    return json.dumps({key: value for key, value in line.items() if value is not None})


def test_a_text_is_asked_as_one_user_message() -> None:
    request = read('{"text": "What is the capital of France?"}').request()
    assert isinstance(request, ChatRequest)
    assert [message.content for message in request.messages] == ["What is the capital of France?"]
    assert (request.model, request.max_completion_tokens) == ("m", 9)


def test_its_answer_is_written_in_the_form_of_the_guides() -> None:
    prompt = read('{"text": "What is the capital of France?"}')
    assert prompt.answered(ANSWER) == {
        "text": "What is the capital of France?",
        "response": "Paris.",
        "tokens_in": 7,
        "tokens_out": 2,
        "elapsed_ms": 1566,
        "finish_reason": "stop",
    }
    assert prompt.failed(Unknown("broke")) == {"text": "What is the capital of France?", "error": "broke"}


def test_openai_lines_are_answered_in_openais_form() -> None:
    prompt = read(openai_line())
    assert isinstance(prompt.request(), ChatRequest)
    record = prompt.answered(ANSWER)
    assert (record["custom_id"], record["error"]) == ("a-1", None)
    assert record["id"].startswith("batch_req_")
    assert record["response"] == {"status_code": 200, "request_id": record["id"], "body": ANSWER.body}
    failed = prompt.failed(InvalidRequest("no", "model"))
    assert failed["response"]["status_code"] == 400
    assert failed["response"]["body"]["error"]["message"] == "no"


def test_openai_lines_may_ask_for_completions() -> None:
    line = openai_line(url="/v1/completions", body={"model": "m", "prompt": "Once"})
    assert isinstance(read(line).request(), CompletionRequest)


def test_unknown_fields_of_openai_lines_and_bodies_are_ignored() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "no_such_field": 1}
    request = read(openai_line(body=body, comment="mine")).request()
    assert isinstance(request, ChatRequest)
    assert request.model == "m"


def test_a_wrong_body_fails_when_it_is_asked() -> None:
    prompt = read(openai_line(body={"model": "m"}))
    with pytest.raises(InvalidRequest, match="messages"):
        prompt.request()


def test_the_request_template_fills_openai_bodies() -> None:
    template = RequestTemplate(model="other", temperature=0.25, max_completion_tokens=5)
    prompt = read(openai_line(body={"messages": [{"role": "user", "content": "hi"}]}), template)
    request = prompt.request()
    assert isinstance(request, ChatRequest)
    assert (request.model, request.temperature, request.max_completion_tokens) == ("other", 0.25, 5)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("nonsense", "not JSON"),
        (b"\xff", "not JSON"),
        ("[1]", "must be an object"),
        ("{}", "has no text"),
        ('{"text": null}', "has no text"),
        ('{"text": 5}', "must be a string"),
        ('{"prompt": "x"}', "has no text"),
        (openai_line(custom_id=5), "custom_id"),
        (openai_line(custom_id=None), "custom_id"),
        (openai_line(method="GET"), "must be POST"),
        (openai_line(url="/v1/images"), "url: "),
        (openai_line(url=["/v1/chat/completions"]), "url: "),
        (openai_line(body="x"), "body"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_line_that_cannot_be_understood_is_named(line: str | bytes, why: str) -> None:
    with pytest.raises(BadLine, match=why):
        read(line)


def test_a_bad_openai_line_keeps_its_id() -> None:
    with pytest.raises(BadLine) as caught:
        read(openai_line(method="GET"))
    record = caught.value.record(7)
    assert (record["custom_id"], record["response"]) == ("a-1", None)
    assert record["error"]["message"].startswith("line 7: ")


@given(st.binary(max_size=60))
def test_any_bytes_are_a_prompt_or_a_bad_line(data: bytes) -> None:
    try:
        read(data)
    except BadLine as bad:
        json.dumps(bad.record(1))
