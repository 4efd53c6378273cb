"""Ollama's API: its clients read lines of JSON, and find models under names with a tag."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from dynamo.llm import ModelType
from dynamo.model import bundled
from support.toys import Live, Scripted, embed_tokens, toy_card

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


async def lines(live: Live, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    async with live.http.post(path, json=body) as answer:
        assert (answer.status, answer.content_type) == (200, "application/x-ndjson")
        return [json.loads(line) for line in (await answer.text()).splitlines()]


def said(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


async def test_a_chat_streams_lines_and_ends_with_the_counts(live: Live, toy: Scripted) -> None:
    body = {"model": "org/toy:latest", "messages": said("THINK"), "options": {"temperature": 0, "num_ctx": 512}}
    got = await lines(live, "/api/chat", body)
    assert "".join(line["message"]["content"] for line in got) == "The answer."
    assert "".join(line["message"].get("thinking", "") for line in got) == "let me see"
    assert [line["done"] for line in got] == [False] * (len(got) - 1) + [True]
    last = got[-1]
    assert (last["done_reason"], last["prompt_eval_count"]) == ("stop", len(toy.requests[0]["token_ids"]))
    assert last["eval_count"] > 0
    assert toy.requests[0]["sampling_options"]["temperature"] == 0


async def test_a_chat_calls_tools_and_takes_their_results(live: Live, toy: Scripted) -> None:
    body = {"model": "org/toy", "messages": said("WEATHER"), "tools": [WEATHER]}
    calls = [call for line in await lines(live, "/api/chat", body) for call in line["message"].get("tool_calls", ())]
    assert calls == [{"function": {"name": "weather", "arguments": {"city": "Lyon"}}}]
    history = [*said("go on"), {"role": "assistant", "tool_calls": calls}, {"role": "tool", "content": "sunny"}]
    status, answer = await live.post("/api/chat", {"model": "org/toy", "messages": history, "stream": False})
    assert (status, answer["message"]) == (200, {"role": "assistant", "content": "It is sunny."})


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_is_answered(live: Live, toy: Scripted, stream: bool) -> None:
    body = {"model": "org/toy", "prompt": "STOPS", "system": "Be brief.", "options": {"stop": ["three"]}}
    if stream:
        got = await lines(live, "/api/generate", body)
    else:
        got = [(await live.post("/api/generate", {**body, "stream": False}))[1]]
    assert "".join(line["response"] for line in got) == "one two "
    assert got[-1]["done"]
    assert "Be brief." in toy.tokenizer.decode(toy.requests[0]["token_ids"])


async def test_a_raw_prompt_is_not_put_into_the_template(live: Live, toy: Scripted) -> None:
    await live.post("/api/generate", {"model": "org/toy", "prompt": "bare", "raw": True, "stream": False})
    assert toy.tokenizer.decode(toy.requests[0]["token_ids"]) == "bare"


async def test_an_empty_prompt_loads_the_model(live: Live, toy: Scripted) -> None:
    status, answer = await live.post("/api/generate", {"model": "org/toy"})
    assert (status, answer["done"], answer["done_reason"]) == (200, True, "load")
    assert not toy.requests


async def test_models_are_listed_and_shown(live: Live, toy: Scripted) -> None:
    (listed,) = (await live.get("/api/tags"))["models"]
    assert listed["name"] == listed["model"] == "org/toy"
    status, shown = await live.post("/api/show", {"model": "org/toy:latest"})
    assert (status, shown["capabilities"]) == (200, ["completion", "tools", "thinking"])
    # What clients look at: Copilot refuses a server below 0.6.4, others read these as numbers and digests.
    assert tuple(map(int, (await live.get("/api/version"))["version"].split("."))) >= (0, 6, 4)
    assert (len(listed["digest"]), set(listed["digest"]) <= set("0123456789abcdef")) == (64, True)
    (loaded,) = (await live.get("/api/ps"))["models"]
    assert (loaded["name"], loaded["expires_at"] > "2100") == (listed["name"], True)


async def test_a_model_whose_files_are_here_has_their_size_and_family(live: Live) -> None:
    folder, gguf = bundled(), bundled() / "tiny.gguf"
    await live.serve(Scripted().generate, toy_card(folder, "folder"))
    await live.serve(Scripted().generate, toy_card(gguf, "file"), "toy.file.generate")
    file, whole = (await live.get("/api/tags"))["models"]
    assert [model["name"] for model in (file, whole)] == ["file", "folder"]
    assert file["size"] == gguf.stat().st_size
    assert whole["size"] == (folder / "model.safetensors").stat().st_size
    for model, form in ((file, "gguf"), (whole, "safetensors")):
        assert (model["details"]["format"], model["details"]["families"]) == (form, ["llama"])


async def test_errors_are_one_sentence(live: Live, toy: Scripted) -> None:
    status, answer = await live.post("/api/chat", {"model": "nobody", "messages": said("x")})
    assert status == 404
    assert "nobody" in answer["error"]
    status, answer = await live.post("/api/pull", {"model": "x"})
    assert (status, answer) == (404, {"error": "Route not found: POST /api/pull"})


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain"])
async def test_bodies_are_json_whatever_their_content_type_says(live: Live, toy: Scripted, kind: str) -> None:
    """`curl -d` declares a form."""
    headers = {"Content-Type": kind}
    for path, field in (("/api/chat", {"messages": said("STOPS")}), ("/api/generate", {"prompt": "STOPS"})):
        body = json.dumps({"model": "org/toy", "stream": False, **field}).encode()
        async with live.http.post(path, data=body, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
    async with live.http.post("/api/show", data=b'{"model": "org/toy"}', headers=headers) as answer:
        assert answer.status == 200, await answer.text()
    async with live.http.post("/api/chat", data=b"model=org/toy", headers=headers) as answer:
        assert answer.status == 400


@pytest.fixture
async def embedder(live: Live, folder: Path) -> Live:
    await live.serve(embed_tokens, toy_card(folder, "embed", ModelType.Embedding), "toy.embed.generate")
    return live


async def test_texts_are_embedded_as_unit_vectors_and_counted(embedder: Live) -> None:
    body = {"model": "embed:latest", "input": ["one two", "three"], "dimensions": 3, "options": {"num_ctx": 9}}
    status, answer = await embedder.post("/api/embed", body)
    assert status == 200, answer
    assert [len(vector) for vector in answer["embeddings"]] == [3, 3]
    assert [math.hypot(*vector) for vector in answer["embeddings"]] == pytest.approx([1, 1])
    assert answer["prompt_eval_count"] > 1
    assert answer["total_duration"] > 0


async def test_the_older_route_gives_one_vector_as_the_worker_made_it(embedder: Live) -> None:
    status, answer = await embedder.post("/api/embeddings", {"model": "embed", "prompt": "one"})
    assert (status, list(answer)) == (200, ["embedding"])
    assert answer["embedding"][1:] == [0.25, 0.5, 0.75]


@pytest.mark.parametrize(
    ("path", "expected"), [("/api/embed", {"embeddings": []}), ("/api/embeddings", {"embedding": []})]
)
async def test_nothing_to_embed_gives_nothing(embedder: Live, path: str, expected: dict[str, Any]) -> None:
    status, answer = await embedder.post(path, {"model": "embed"})
    assert (status, expected.items() <= answer.items()) == (200, True)


async def test_a_text_that_is_too_long_is_cut_unless_that_is_forbidden(embedder: Live, folder: Path) -> None:
    limit = toy_card(folder, "embed", ModelType.Embedding).context_length
    body = {"model": "embed", "input": "one " * (limit or 0) * 2}
    status, answer = await embedder.post("/api/embed", body)
    assert (status, answer["prompt_eval_count"]) == (200, limit)
    status, answer = await embedder.post("/api/embed", {**body, "truncate": False})
    assert status == 400
    assert "maximum context length" in answer["error"]


async def test_embedding_models_are_listed_and_shown_and_chats_do_not_embed(embedder: Live, toy: Scripted) -> None:
    async with embedder.http.get("/api/tags") as listed:
        assert [model["name"] for model in (await listed.json())["models"]] == ["embed", "org/toy"]
    assert (await embedder.post("/api/show", {"model": "embed"}))[1]["capabilities"] == ["embedding"]
    for body in ({"model": "org/toy", "input": "x"}, {"model": "org/toy"}):
        status, answer = await embedder.post("/api/embed", body)
        assert (status, list(answer)) == (400, ["error"])
