"""What Codex CLI sends by default: metadata, tools in namespaces, and tools that OpenAI would run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.toys import Live, Scripted

FUNCTION = {"type": "function", "name": "exec_command", "parameters": {"type": "object", "properties": {}}}
WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
ASKED: dict[str, Any] = {
    "model": "org/toy",
    "instructions": "Be brief.",
    "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "WEATHER"}]}],
    "tools": [
        FUNCTION,
        {"type": "namespace", "name": "mcp__sky", "description": "The sky", "tools": [WEATHER]},
        {"type": "web_search", "external_web_access": False},
        {"type": "image_generation", "output_format": "png"},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "k",
    "client_metadata": {"x-codex-installation-id": "i"},
}


@pytest.mark.parametrize("stream", [False, True])
async def test_codex_is_answered_and_its_calls_are_in_their_namespace(live: Live, toy: Scripted, stream: bool) -> None:
    if stream:
        events = await live.events("/v1/responses", {**ASKED, "stream": True})
        last = [json.loads(line[6:]) for line in events.splitlines() if line.startswith("data: ")][-1]
        answer = last["response"]
    else:
        async with live.http.post("/v1/responses", json=ASKED) as response:
            warning = "ignored tools that run at OpenAI: web_search, image_generation"
            assert response.headers["x-dynamo-warning"] == warning
            answer = await response.json()
    (call,) = [item for item in answer["output"] if item["type"] == "function_call"]
    assert (call["name"], call["namespace"]) == ("weather", "mcp__sky")
    assert json.loads(call["arguments"]) == {"city": "Lyon"}
    prompt = toy.tokenizer.decode(toy.requests[0]["token_ids"])
    assert "exec_command" in prompt
    assert "web_search" not in prompt


async def test_functions_of_one_name_are_told_apart(live: Live, toy: Scripted) -> None:
    tools = [WEATHER, {"type": "namespace", "name": "sky", "tools": [WEATHER]}]
    status, answer = await live.post("/v1/responses", {**ASKED, "tools": tools})
    assert status == 200, answer
    assert "sky__weather" in toy.tokenizer.decode(toy.requests[0]["token_ids"])
    assert "namespace" not in answer["output"][-1]


async def test_tools_that_only_openai_models_know_are_refused_in_their_own_words(live: Live, toy: Scripted) -> None:
    status, answer = await live.post("/v1/responses", {**ASKED, "tools": [{"type": "computer", "name": "x"}]})
    assert (status, "run by the client" in answer["error"]["message"]) == (400, True)
    remote = {"type": "shell", "environment": {"type": "container_auto"}}
    status, answer = await live.post("/v1/responses", {**ASKED, "tools": [remote], "tool_choice": "required"})
    assert (status, "environment is of type 'local'" in answer["error"]["message"]) == (400, True)
    messages = {"model": "org/toy", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
    hosted, own = {"type": "web_search_20250305", "name": "w"}, {"type": "bash_20250124", "name": "bash"}
    async with live.http.post("/v1/messages", json={**messages, "colour": 1, "tools": [hosted]}) as response:
        assert response.status == 200
        warning = "ignored unknown fields: colour; ignored tools that run at Anthropic: web_search_20250305"
        assert response.headers["x-dynamo-warning"] == warning
    status, answer = await live.post("/v1/messages", {**messages, "tools": [own]})
    assert (status, "run by the client" in answer["error"]["message"]) == (400, True)
