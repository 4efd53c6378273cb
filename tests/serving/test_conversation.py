"""One conversation for all doors: what HTTP answers is what a batch or a terminal gets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dynamo.llm import ModelType
from dynamo.protocols.chat import ChatRequest, Message
from dynamo.protocols.completions import CompletionRequest
from dynamo.protocols.errors import InvalidRequest
from dynamo.serving.ask import ask
from support.toys import Live, Scripted, chat_text, text_card, toy_card, toy_folder

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
MESSAGES = [{"role": "user", "content": "THINK"}]
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
ANSWERS = {
    "THINK": "<think>let me see</think>The answer.",
    "WEATHER": '<tool_call>{"name": "weather", "arguments": {"city": "Lyon"}}</tool_call>',
    "TEXT": "one two three",
}


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    folder = toy_folder(tmp_path / "toy")
    async with Live() as frontend:
        card = toy_card(folder, "org/toy", tool_call_parser="hermes", reasoning_parser="basic")
        await frontend.serve(Scripted(ANSWERS).generate, card)
        await frontend.serve(chat_text, text_card("org/text"), "text.backend.generate")
        yield frontend


def request_of(path: str, body: dict[str, Any]) -> ChatRequest | CompletionRequest:
    kind: type[Any] = ChatRequest if path == CHAT else CompletionRequest
    return msgspec.convert(body, kind)


def lasting(body: dict[str, Any]) -> dict[str, Any]:
    """Without what differs from one answer to the next."""
    for choice in body["choices"]:
        for call in (choice.get("message") or {}).get("tool_calls") or ():
            call["id"] = "call"
    return {name: value for name, value in body.items() if name not in ("id", "created")}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": MESSAGES}),
        (CHAT, {"messages": MESSAGES, "n": 2, "logprobs": True, "top_logprobs": 1}),
        (CHAT, {"messages": [{"role": "user", "content": "WEATHER"}], "tools": [WEATHER]}),
        (CHAT, {"messages": MESSAGES, "stop": ["answer"], "nvext": {"extra_fields": ["stop_reason"]}}),
        (CHAT, {"messages": MESSAGES, "model": "org/text"}),
        (TEXT, {"prompt": "TEXT"}),
        (TEXT, {"prompt": ["TEXT", "more"], "n": 2, "best_of": 3, "seed": 1}),
        (TEXT, {"prompt": "TEXT", "echo": True, "logprobs": 1, "max_tokens": 2}),
    ],
)
async def test_an_answer_is_the_same_over_http_and_without(live: Live, path: str, body: dict[str, Any]) -> None:
    body = {"model": "org/toy", **body}
    status, over_http = await live.post(path, body)
    assert status == 200
    answer = await ask(live.server.models.get(body["model"]), request_of(path, body))
    assert lasting(answer.body) == lasting(over_http)


class Heard:
    def __init__(self) -> None:
        self.said = ""
        self.thought = ""

    def text(self, text: str) -> None:
        self.said += text

    def reasoning(self, text: str) -> None:
        self.thought += text


async def test_a_listener_hears_the_first_choice(live: Live) -> None:
    request = ChatRequest(model="org/toy", messages=[Message(role="user", content="THINK")], n=2)
    heard = Heard()
    answer = await ask(live.server.models.get("org/toy"), request, heard)
    assert (heard.thought, heard.said) == ("let me see", "The answer.")
    assert (answer.reasoning, answer.text) == ("let me see", "The answer.")
    assert answer.time_to_first_token is not None
    assert 0 <= answer.time_to_first_token <= answer.elapsed


async def test_a_listener_hears_a_worker_that_takes_text(live: Live) -> None:
    heard = Heard()
    request = ChatRequest(model="org/text", messages=[Message(role="user", content="hello")])
    answer = await ask(live.server.models.get("org/text"), request, heard)
    assert (heard.thought, heard.said) == ("hm", "hello")
    assert (answer.text, answer.tokens_in, answer.tokens_out) == ("hello", 5, 2)


async def test_a_model_that_serves_no_chats_refuses_them_at_every_door(live: Live) -> None:
    await live.serve(chat_text, text_card("texts", ModelType.Completions), "texts.backend.generate")
    status, answer = await live.post(CHAT, {"model": "texts", "messages": MESSAGES})
    message = "The model 'texts' does not serve chat; it serves: completions."
    assert (status, answer["error"]["message"]) == (400, message)
    request = ChatRequest(model="texts", messages=[Message(role="user", content="hello")])
    with pytest.raises(InvalidRequest) as refused:
        await ask(live.server.models.get("texts"), request)
    assert refused.value.message == message
