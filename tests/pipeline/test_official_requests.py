"""Requests sent by the official clients are accepted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import anthropic
import httpx2
import openai
import pytest
from openai.types.chat import ChatCompletionMessage
from pydantic import BaseModel

from dynamo.api.anthropic.request import CountTokensRequest, MessagesRequest
from dynamo.api.anthropic.to_chat import anthropic_to_chat
from dynamo.api.responses.request import ResponsesRequest
from dynamo.api.responses.to_chat import responses_to_chat
from dynamo.pipeline.guidance import guided_decoding
from dynamo.pipeline.validate import validate_chat, validate_completion, validate_embedding
from dynamo.protocols.body import BodyDecoder
from dynamo.protocols.chat import ChatRequest
from dynamo.protocols.completions import CompletionRequest
from dynamo.protocols.embeddings import EmbeddingRequest

T = TypeVar("T")


class Day(BaseModel):
    name: str
    hours: int


class Calendar(BaseModel):
    days: list[Day]


class Wire:
    """Replaces the network, and keeps the body of the last request."""

    def __init__(self) -> None:
        self.body = b""
        transport = httpx2.MockTransport(self._keep)
        self.openai = openai.OpenAI(
            api_key="k",
            base_url="http://test/v1",
            max_retries=0,
            http_client=openai.DefaultHttpxClient(transport=transport),
        )
        self.anthropic = anthropic.Anthropic(
            api_key="k",
            base_url="http://test",
            max_retries=0,
            http_client=anthropic.DefaultHttpxClient(transport=transport),
        )

    def _keep(self, request: httpx2.Request) -> httpx2.Response:
        self.body = request.read()
        return httpx2.Response(400, json={"error": {"message": "kept"}})

    def sent(self, kind: type[T], call: Callable[[], Any]) -> T:
        with pytest.raises((openai.BadRequestError, anthropic.BadRequestError)):
            call()
        return BodyDecoder(kind).decode(self.body)


@pytest.fixture
def wire() -> Any:
    wire = Wire()
    with wire.openai, wire.anthropic:
        yield wire


def test_chat_with_an_earlier_answer_sent_back(wire: Wire) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    earlier = ChatCompletionMessage.model_validate(
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm", "refusal": None}
    )
    messages: Any = [
        {"role": "user", "content": "hi"},
        earlier,
        {"role": "tool", "tool_call_id": "c", "content": "x"},
    ]
    request = wire.sent(
        ChatRequest,
        lambda: wire.openai.chat.completions.create(
            model="m", messages=messages, stop=["a"], stream=True, extra_body={"top_k": 3, "nvext": {"top_k": 2}}
        ),
    )
    validate_chat(request)
    assert request.messages[1].reasoning_content == "hm"
    assert request.top_k == 3


def test_chat_with_structured_output_and_tools(wire: Wire) -> None:
    request = wire.sent(
        ChatRequest,
        lambda: wire.openai.chat.completions.parse(
            model="m",
            messages=[{"role": "user", "content": "hi"}],
            response_format=Calendar,
            tools=[openai.pydantic_function_tool(Calendar)],
        ),
    )
    validate_chat(request)
    form = guided_decoding(request)
    assert form is not None
    assert set(form["json"]["$defs"]) == {"Day"}


def test_completions(wire: Wire) -> None:
    request = wire.sent(
        CompletionRequest,
        lambda: wire.openai.completions.create(
            model="m", prompt=[[1, 2], [3]], logit_bias={"1": 2}, stream=True, stream_options={"include_usage": True}
        ),
    )
    validate_completion(request)
    assert request.prompts() == [[1, 2], [3]]


def test_embeddings_are_requested_in_base64_by_default(wire: Wire) -> None:
    request = wire.sent(EmbeddingRequest, lambda: wire.openai.embeddings.create(model="m", input=["a", "b"]))
    validate_embedding(request)
    assert (request.inputs(), request.encoding_format) == (["a", "b"], "base64")


def test_responses_with_structured_output(wire: Wire) -> None:
    request = wire.sent(
        ResponsesRequest,
        lambda: wire.openai.responses.parse(
            model="m", input=[{"role": "user", "content": "hi"}], text_format=Calendar, reasoning={"effort": "low"}
        ),
    )
    chat = responses_to_chat(request)
    validate_chat(chat)
    form = guided_decoding(chat)
    assert form is not None
    assert set(form["json"]["$defs"]) == {"Day"}


def test_messages_with_tools_and_structured_output(wire: Wire) -> None:
    request = wire.sent(
        MessagesRequest,
        lambda: wire.anthropic.messages.parse(
            model="m",
            max_tokens=9,
            system=[{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
            messages=[{"role": "user", "content": "hi"}],
            tools=[{"name": "f", "input_schema": {"type": "object"}}],
            tool_choice={"type": "auto", "disable_parallel_tool_use": True},
            thinking={"type": "enabled", "budget_tokens": 1024},
            output_format=Calendar,
        ),
    )
    chat = anthropic_to_chat(request)
    validate_chat(chat)
    form = guided_decoding(chat)
    assert form is not None
    assert set(form["json"]["$defs"]) == {"Day"}
    assert chat.parallel_tool_calls is False


def test_counting_tokens(wire: Wire) -> None:
    request = wire.sent(
        CountTokensRequest,
        lambda: wire.anthropic.messages.count_tokens(model="m", messages=[{"role": "user", "content": "hi"}]),
    )
    validate_chat(anthropic_to_chat(request))
