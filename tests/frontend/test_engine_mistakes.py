"""What engines yield that makes no sense, and what their clients get."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.toys import Handler, Live, text_card, toy_card

CHAT = "/v1/chat/completions"
SAID = {"choices": [{"index": 0, "delta": {"content": "hi"}}]}


def request(path: str = CHAT, **fields: Any) -> dict[str, Any]:
    prompt = {"messages": [{"role": "user", "content": "hi"}]} if path == CHAT else {"prompt": "hi"}
    return {"model": "faulty", **prompt, **fields}


def yields(*items: Any) -> Handler:
    async def generate(request: dict[str, Any]) -> AsyncIterator[Any]:
        for item in items:
            yield item

    return generate


async def text_engine(live: Live, *items: Any) -> None:
    await live.serve(yields(*items), text_card("faulty"), "toy.faulty.generate")


async def token_engine(live: Live, folder: Path, *items: Any) -> None:
    await live.serve(yields(*items), toy_card(folder, "faulty"), "toy.faulty.generate")


def chunks(events: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in events.split("\n\n") if line.startswith("data: {")]


@pytest.mark.parametrize("id", [2048, 2**31])
async def test_an_id_outside_the_vocabulary_is_502_and_names_the_worker(live: Live, folder: Path, id: int) -> None:
    await token_engine(live, folder, {"token_ids": [100]}, {"token_ids": [id]})
    status, answer = await live.post(CHAT, request())
    assert status == 502
    assert f"sent token id {id}, outside" in answer["error"]["message"]
    assert answer["error"]["message"].startswith("the worker ")
    error = chunks(await live.events(CHAT, request(stream=True)))[-1]
    assert "outside the model's vocabulary" in error["error"]["message"]


@pytest.mark.parametrize(
    ("item", "complaint"),
    [
        ({"foo": 1}, "sent a chunk without choices"),
        ({"choices": None}, "sent a chunk without choices"),
        ({"choices": ["hi"]}, "sent a chunk without choices"),
        ("hi", "sent a str where a chunk belongs"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_a_chunk_without_choices_is_502(live: Live, item: Any, complaint: str, path: str) -> None:
    await text_engine(live, item)
    for stream in (False, True):
        status, answer = await live.post(path, request(path, stream=stream))
        assert status == 502
        assert complaint in answer["error"]["message"]


async def test_an_error_instead_of_a_chunk_is_the_engines(live: Live) -> None:
    await text_engine(live, {"error": {"message": "out of memory"}})
    status, answer = await live.post(CHAT, request())
    assert status == 500
    assert answer["error"]["message"].startswith("out of memory")


@pytest.mark.parametrize("items", [(), (SAID,)], ids=["at once", "after text"])
async def test_a_text_engine_that_just_ends_has_finished(live: Live, items: tuple[Any, ...]) -> None:
    await text_engine(live, *items)
    said = "hi" * len(items)
    _, answer = await live.post(CHAT, request())
    assert answer["choices"][0]["message"]["content"] == said
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert (answer["object"], answer["model"]) == ("chat.completion", "faulty")
    streamed = chunks(await live.events(CHAT, request(stream=True)))
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in streamed) == said
    assert streamed[-1]["choices"][0]["finish_reason"] == "stop"
    assert {chunk["object"] for chunk in streamed} == {"chat.completion.chunk"}
    assert all(chunk["id"] for chunk in streamed)


async def test_a_token_engine_that_just_ends_has_finished(live: Live, folder: Path) -> None:
    await token_engine(live, folder)
    _, answer = await live.post(CHAT, request())
    assert answer["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_token_engine_that_sends_no_tokens_is_at_fault_and_logged_once(
    live: Live, folder: Path, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    await token_engine(live, folder, {"tokens_ids": [100]}, {"tokens_ids": [101]})
    status, answer = await live.post(CHAT, request(stream=stream))
    assert status == 502
    assert "neither token_ids, text nor a finish_reason" in answer["error"]["message"]
    (record,) = (record for record in caplog.records if "neither token_ids" in record.getMessage())
    assert record.levelname == "ERROR"


async def test_a_whole_answer_of_a_text_engine_reaches_streaming_clients_as_a_delta(live: Live) -> None:
    call = {"id": "call-1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": "hi", "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    await text_engine(live, {"object": "chat.completion", "choices": [choice]})
    (chunk,) = chunks(await live.events(CHAT, request(stream=True)))
    assert chunk["object"] == "chat.completion.chunk"
    assert chunk["choices"] == [
        {"index": 0, "finish_reason": "tool_calls", "delta": {**message, "tool_calls": [{"index": 0, **call}]}}
    ]
    _, answer = await live.post(CHAT, request())
    assert answer["choices"][0]["message"]["content"] == "hi"


@pytest.mark.parametrize("stream", [False, True])
async def test_the_usage_of_a_text_engine_adds_up(live: Live, stream: bool) -> None:
    usage = {
        "prompt_tokens": 5,
        "completion_tokens": -2,
        "total_tokens": 99,
        "prompt_tokens_details": {"cached_tokens": 7},
    }
    await text_engine(live, SAID, {"choices": [], "usage": usage})
    if stream:
        shown = next(
            chunk["usage"] for chunk in chunks(await live.events(CHAT, request(stream=True))) if "usage" in chunk
        )
    else:
        shown = (await live.post(CHAT, request()))[1]["usage"]
    assert (shown["prompt_tokens"], shown["completion_tokens"], shown["total_tokens"]) == (5, 0, 5)
    assert shown["prompt_tokens_details"] == {"cached_tokens": 5}


async def test_the_usage_of_a_token_engine_adds_up(live: Live, folder: Path) -> None:
    usage = {
        "prompt_tokens": -3,
        "completion_tokens": 50,
        "prompt_tokens_details": {"cached_tokens": 10**6},
        "completion_tokens_details": {"reasoning_tokens": 50},
    }
    await token_engine(live, folder, {"token_ids": [100, 101]}, {"finish_reason": "stop", "completion_usage": usage})
    shown = (await live.post(CHAT, request()))[1]["usage"]
    prompt = shown["prompt_tokens"]
    assert prompt > 0
    assert shown["completion_tokens"] == 2
    assert shown["total_tokens"] == prompt + 2
    assert shown["prompt_tokens_details"]["cached_tokens"] == prompt
    assert shown["completion_tokens_details"]["reasoning_tokens"] == 2
