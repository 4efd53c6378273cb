"""`return_token_ids`, vLLM's extension."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.toys import Live, Scripted

SAID = [{"role": "user", "content": "STOPS"}]


def chunks(stream: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]


@pytest.mark.parametrize("more", [{}, {"stop": ["three"]}, {"logprobs": True}, {"max_tokens": 2}, {"n": 2}])
async def test_a_chat_answer_has_the_ids_of_its_tokens_and_of_its_prompt(
    live: Live, toy: Scripted, more: dict[str, Any]
) -> None:
    asked = {"model": "org/toy", "messages": SAID, "return_token_ids": True, **more}
    status, answer = await live.post("/v1/chat/completions", asked)
    assert status == 200, answer
    assert answer["prompt_token_ids"] == list(toy.requests[-1]["token_ids"])
    ids = [choice["token_ids"] for choice in answer["choices"]]
    assert sum(map(len, ids)) == answer["usage"]["completion_tokens"]
    for choice in answer["choices"]:
        assert toy.tokenizer.decode(choice["token_ids"]).startswith(choice["message"]["content"])

    streamed = chunks(await live.events("/v1/chat/completions", {**asked, "stream": True}))
    assert [each["prompt_token_ids"] for each in streamed if "prompt_token_ids" in each] == (
        [answer["prompt_token_ids"]] * len(ids)
    )
    assert "prompt_token_ids" in streamed[0]
    for index, expected in enumerate(ids):
        parts = [choice for each in streamed for choice in each["choices"] if choice["index"] == index]
        assert [id for part in parts for id in part.get("token_ids", [])] == expected


async def test_a_completion_has_the_ids_of_its_tokens_and_of_each_prompt(live: Live, toy: Scripted) -> None:
    asked = {"model": "org/toy", "prompt": ["one two", "three"], "max_tokens": 3, "return_token_ids": True}
    status, answer = await live.post("/v1/completions", asked)
    assert status == 200, answer
    assert [choice["prompt_token_ids"] for choice in answer["choices"]] == [
        toy.tokenizer.encode("one two"), toy.tokenizer.encode("three"),
    ]  # fmt: skip
    assert [len(choice["token_ids"]) for choice in answer["choices"]] == [3, 3]
    assert all(toy.tokenizer.decode(choice["token_ids"]) == choice["text"] for choice in answer["choices"])

    streamed = chunks(await live.events("/v1/completions", {**asked, "stream": True}))
    for expected in answer["choices"]:
        parts = [choice for each in streamed for choice in each["choices"] if choice["index"] == expected["index"]]
        assert [id for part in parts for id in part["token_ids"]] == expected["token_ids"]
        assert [part.get("prompt_token_ids") for part in parts] == (
            [expected["prompt_token_ids"]] + [None] * (len(parts) - 1)
        )


async def test_the_best_of_several_completions_have_their_own_ids(live: Live, toy: Scripted) -> None:
    asked = {"model": "org/toy", "prompt": "one", "best_of": 3, "seed": 4, "max_tokens": 8, "return_token_ids": True}
    _, answer = await live.post("/v1/completions", asked)
    (choice,) = answer["choices"]
    assert toy.tokenizer.decode(choice["token_ids"]).startswith(choice["text"])
    asked = {"model": "org/toy", "prompt": "one two", "max_tokens": 0, "echo": True, "logprobs": 1}
    _, answer = await live.post("/v1/completions", {**asked, "return_token_ids": True})
    assert answer["choices"][0]["token_ids"] == []


@pytest.mark.parametrize("stream", [False, True])
async def test_ids_are_left_out_unless_asked_for(live: Live, toy: Scripted, stream: bool) -> None:
    for path, body in (("chat/completions", {"messages": SAID}), ("completions", {"prompt": "one"})):
        async with live.http.post(f"/v1/{path}", json={"model": "org/toy", "stream": stream, **body}) as answer:
            assert "token_ids" not in await answer.text()
