"""What clients do not show: extensions, headers, administration, documents, and leaving early."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dynamo.llm import ModelType
from dynamo.runtime import Context
from dynamo.serving.request_template import RequestTemplate
from support.toys import Live, Scripted, text_card, toy_card
from support.waiting import PATIENCE

CHAT: dict[str, Any] = {"model": "org/toy", "messages": [{"role": "user", "content": "STOPS"}]}


async def test_annotations_come_first_as_comments(live: Live, toy: Scripted) -> None:
    names = ["request_id", "formatted_prompt", "token_ids", "unheard_of"]
    stream = await live.events("/v1/chat/completions", {**CHAT, "stream": True, "nvext": {"annotations": names}})
    events = [event.split("\n") for event in stream.split("\n\n")[:3]]
    told = {name.removeprefix("event: "): json.loads(value.removeprefix(": ")) for name, value in events}
    assert list(told) == names[:3]
    assert json.loads(told["token_ids"]) == toy.requests[0]["token_ids"]
    assert "STOPS" in told["formatted_prompt"]
    assert "unheard_of" not in stream


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_extra_fields_tell_of_worker_time_and_stop(live: Live, folder: Path, path: str, stream: bool) -> None:
    engine = Scripted({"STOPS": "one two three"})
    worker = await live.serve(engine.generate, toy_card(folder, "org/toy"))
    body = {
        **CHAT,
        "stop": ["two"],
        "stream": stream,
        "nvext": {"extra_fields": ["worker_id", "timing", "stop_reason"]},
    }
    if path == "/v1/completions":
        body["prompt"] = body.pop("messages")[0]["content"]
    if stream:
        lines = [line for line in (await live.events(path, body)).split("\n") if line.startswith("data: {")]
        nvext = json.loads(lines[-1].removeprefix("data: "))["nvext"]
        assert not any("nvext" in line for line in lines[:-1])
    else:
        nvext = (await live.post(path, body))[1]["nvext"]
    assert nvext["worker_id"]["decode_worker_id"] == worker.instance_id
    assert 0 <= nvext["timing"]["ttft_ms"] <= nvext["timing"]["total_time_ms"]
    assert nvext["stop_reason"] == "two"


async def test_headers_say_where_a_request_goes_and_how_urgent_it_is(live: Live, folder: Path) -> None:
    card = toy_card(folder, "org/toy")
    engines = [Scripted(), Scripted()]
    workers = [await live.serve(engine.generate, card) for engine in engines]
    for _ in range(3):
        status, _answer = await live.post(
            "/v1/chat/completions",
            CHAT,
            **{
                "x-dynamo-worker-instance-id": str(workers[1].instance_id),
                "x-dynamo-request-priority": "-4",
                "x-dynamo-dp-rank": "2",
                "x-tenant-id": "acme",
            },
        )
        assert status == 200
    assert (len(engines[0].requests), len(engines[1].requests)) == (0, 3)
    routing = engines[1].requests[0]["routing"]
    assert (routing["priority"], routing["dp_rank"], routing["cache_salt"]) == (-4, 2, "acme")
    status, _answer = await live.post("/v1/chat/completions", CHAT, **{"x-dynamo-worker-instance-id": "left"})
    assert status == 200
    status, answer = await live.post("/v1/chat/completions", CHAT, **{"x-worker-instance-id": "5"})
    assert (status, answer["error"]["param"]) == (400, "nvext.backend_instance_id")


async def test_a_prompt_can_come_as_tokens_or_raw(live: Live, toy: Scripted) -> None:
    ids = toy.tokenizer.encode("STOPS here")
    for path in ("/v1/chat/completions", "/v1/completions"):
        body = {**CHAT, "prompt": "x", "nvext": {"token_data": ids}}
        del body["messages" if path == "/v1/completions" else "prompt"]
        status, _ = await live.post(path, body)
        assert status == 200
        assert toy.requests[-1]["token_ids"] == ids
        status, answer = await live.post(path, body | {"nvext": {"token_data": [10**9]}})
        assert (status, answer["error"]["param"]) == (400, "nvext.token_data")
    await live.post("/v1/chat/completions", {**CHAT, "nvext": {"use_raw_prompt": True}})
    assert toy.requests[-1]["token_ids"] == toy.tokenizer.encode("STOPS")
    two = {**CHAT, "messages": CHAT["messages"] * 2, "nvext": {"use_raw_prompt": True}}
    assert (await live.post("/v1/chat/completions", two))[0] == 400


async def test_template_arguments_reach_the_template(live: Live, toy: Scripted) -> None:
    for extra in ({"reasoning_effort": "high"}, {"chat_template_kwargs": {"enable_thinking": True}}):
        await live.post("/v1/chat/completions", {**CHAT, **extra})
        assert "Think first." in toy.tokenizer.decode(toy.requests[-1]["token_ids"])
    message = {"model": "org/toy", "max_tokens": 5, "messages": CHAT["messages"]}
    await live.post("/v1/messages", {**message, "chat_template_args": {"enable_thinking": True}})
    assert "Think first." in toy.tokenizer.decode(toy.requests[-1]["token_ids"])
    response = {"model": "org/toy", "input": "x", "reasoning": {"effort": "low"}}
    await live.post("/v1/responses", response)
    assert "Think first." in toy.tokenizer.decode(toy.requests[-1]["token_ids"])


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"nvext": {"extra_fields": ["secrets"]}}, "nvext.extra_fields"),
        ({"nvext": {"annotations": ["query_instance_id:"]}}, "nvext.annotations"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, None),
    ],
)
async def test_what_cannot_be_done_is_refused_by_name(
    live: Live, toy: Scripted, extra: dict[str, Any], param: str | None
) -> None:
    status, answer = await live.post("/v1/chat/completions", {**CHAT, **extra})
    assert status == 400
    assert answer["error"]["param"] == (param or "messages[0].content[0]")


async def test_workers_are_asked_to_empty_their_caches(live: Live, folder: Path) -> None:
    async def clear(request: Any) -> AsyncIterator[Any]:
        yield {"status": "success", "blocks": 12}

    async def broken(request: Any) -> AsyncIterator[Any]:
        raise RuntimeError("stuck")
        yield

    assert await live.post("/clear_kv_blocks", {}) == (200, {"message": "No active worker groups found"})
    good = await live.serve(Scripted().generate, toy_card(folder, "a"), "toy.a.generate", clear_kv_blocks=clear)
    bad = await live.serve(Scripted().generate, toy_card(folder, "b"), "toy.b.generate", clear_kv_blocks=broken)
    await live.serve(Scripted().generate, toy_card(folder, "c"), "toy.c.generate")
    status, answer = await live.post("/clear_kv_blocks", {})
    assert status == 200
    assert answer["cleared_workers"] == [
        {
            "name": f"a-instance-{good.instance_id}",
            "endpoint": "toy/a/clear_kv_blocks",
            "status": "cleared",
            "response": {"status": "success", "blocks": 12},
        }
    ]
    failed = {one["name"]: (one["status"], one["error"]) for one in answer["failed_workers"]}
    assert failed == {
        f"b-instance-{bad.instance_id}": ("failed", "stuck"),
        "c": ("unsupported", "this worker group serves no such endpoint"),
    }


async def test_thresholds_are_kept_for_each_model(live: Live, toy: Scripted) -> None:
    nothing = {
        "active_decode_blocks_threshold": None,
        "active_prefill_tokens_threshold": None,
        "active_prefill_tokens_threshold_frac": None,
        "model": "org/toy",
    }
    assert await live.post("/busy_threshold", {"model": "org/toy"}) == (200, nothing)
    asked = {"model": "org/toy", "active_decode_blocks_threshold": 0.9}
    assert await live.post("/busy_threshold", asked) == (200, {**nothing, **asked})
    more = {"model": "org/toy", "active_prefill_tokens_threshold": 1000}
    assert await live.post("/busy_threshold", more) == (200, {**nothing, **asked, **more})
    assert await live.get("/busy_threshold") == {"thresholds": [{**nothing, **asked, **more}]}
    assert (await live.post("/busy_threshold", {**asked, "active_decode_blocks_threshold": 2}))[0] == 400
    assert (await live.post("/busy_threshold", {}))[0] == 400
    assert (await live.post("/busy_threshold", {"model": "nobody"}))[0] == 404


async def test_thresholds_outlast_the_workers_of_their_model(live: Live, folder: Path) -> None:
    card = toy_card(folder, "org/toy")
    worker = await live.serve(Scripted().generate, card)
    asked = {"model": "org/toy", "active_prefill_tokens_threshold": 7}
    assert (await live.post("/busy_threshold", asked))[0] == 200
    worker.shutdown()
    async with asyncio.timeout(PATIENCE):
        while (await live.get("/busy_threshold"))["thresholds"]:
            pass
    await live.serve(Scripted().generate, card)
    (told,) = (await live.get("/busy_threshold"))["thresholds"]
    assert told["active_prefill_tokens_threshold"] == 7


async def test_the_documents_are_there_and_need_nothing_from_elsewhere(live: Live) -> None:
    api = await live.get("/openapi.json")
    assert {"/v1/chat/completions", "/v1/messages", "/v1/embeddings", "/clear_kv_blocks"} <= set(api["paths"])
    async with live.http.get("/docs") as answer:
        page = await answer.text()
        assert answer.content_type == "text/html"
    assert "http://" not in page
    assert "https://" not in page


async def test_an_unknown_path_and_a_wrong_method_are_told_apart(live: Live) -> None:
    async with live.http.get("/v2/none") as answer:
        assert answer.status == 404
        assert "GET /v2/none" in (await answer.json())["error"]["message"]
    async with live.http.get("/v1/chat/completions") as answer:
        assert (answer.status, answer.headers["Allow"]) == (405, "POST")
    async with live.http.post("/v1/messages/none", json={}) as answer:
        assert (answer.status, (await answer.json())["type"]) == (404, "error")


async def test_every_answer_carries_the_request_id(live: Live, toy: Scripted) -> None:
    for path in ("/v1/models", "/nowhere", "/health", "/docs", "/openapi.json"):
        async with live.http.get(path, headers={"x-request-id": "mine"}) as answer:
            assert answer.headers["x-request-id"] == "mine"
    async with live.http.post("/v1/chat/completions", json={**CHAT, "stream": True}) as answer:
        assert answer.headers["x-request-id"]


class Patient:
    """A worker that never answers and notes that it was left."""

    def __init__(self, first: list[int] | None = None) -> None:
        self.begun, self.left = asyncio.Event(), asyncio.Event()
        self._first = first

    async def generate(self, request: Any, context: Context) -> AsyncIterator[Any]:
        if self._first:
            yield {"token_ids": self._first}
        self.begun.set()
        await context.async_killed_or_stopped()
        self.left.set()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/chat/completions", {**CHAT, "n": 3}),
        ("/v1/completions", {"model": "org/toy", "prompt": "x"}),
        ("/v1/responses", {"model": "org/toy", "input": "x"}),
        ("/v1/messages", {"model": "org/toy", "messages": CHAT["messages"], "max_tokens": 5}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_before_the_first_token_cancels_the_work(
    live: Live, folder: Path, path: str, body: dict[str, Any], stream: bool
) -> None:
    worker = Patient()
    await live.serve(worker.generate, toy_card(folder, "org/toy"))
    asking = asyncio.create_task(live.http.post(path, json={**body, "stream": stream}).__aenter__())
    async with asyncio.timeout(PATIENCE):
        await worker.begun.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await worker.left.wait()


async def test_a_client_that_leaves_its_embeddings_or_a_running_stream_cancels_the_work(
    live: Live, folder: Path
) -> None:
    embedder = Patient()
    await live.serve(embedder.generate, text_card("embed", ModelType.Embedding), "toy.embed.generate")
    asking = asyncio.create_task(live.http.post("/v1/embeddings", json={"model": "embed", "input": "x"}).__aenter__())
    worker = Patient(first=[300])
    await live.serve(worker.generate, toy_card(folder, "org/toy"))
    async with asyncio.timeout(PATIENCE):
        await embedder.begun.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await embedder.left.wait()
        answer = await live.http.post("/v1/chat/completions", json={**CHAT, "stream": True})
        assert await answer.content.readline()
        answer.close()
        await worker.left.wait()


async def test_an_old_http_client_gets_a_stream_without_chunks(live: Live, toy: Scripted) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(live.url.rpartition(":")[2]))
    body = json.dumps({**CHAT, "stream": True}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    assert answer.endswith(b"data: [DONE]\n\n")
    assert aiohttp.hdrs.TRANSFER_ENCODING.lower().encode() not in answer.lower()


async def test_the_operators_template_fills_each_route_in_its_own_words(folder: Path) -> None:
    template = RequestTemplate(model="toy", temperature=0.5, max_completion_tokens=2)
    async with Live(request_template=template) as live:
        engine = Scripted()
        await live.serve(engine.generate, toy_card(folder, "toy"))
        messages = [{"role": "user", "content": "x"}]
        for path, body in (
            ("/v1/chat/completions", {"messages": messages}),
            ("/v1/completions", {"prompt": "x"}),
            ("/v1/responses", {"input": "x"}),
            ("/v1/messages", {"messages": messages}),
        ):
            status, answer = await live.post(path, body)
            assert status == 200, answer
            request = engine.requests.pop()
            assert request["stop_conditions"]["max_tokens"] == 2
            assert request["sampling_options"]["temperature"] == 0.5
        assert (await live.post("/v1/messages/count_tokens", {"messages": messages}))[0] == 200
        assert (await live.post("/busy_threshold", {}))[0] == 200


@pytest.mark.parametrize("large", [{}, {"user": "u" * 900_000}])
async def test_the_operators_template_replaces_empty_fields_in_bodies_of_any_size(
    folder: Path, monkeypatch: pytest.MonkeyPatch, large: dict[str, str]
) -> None:
    monkeypatch.setattr("dynamo.protocols.body_shape._LARGE", 100_000)
    template = RequestTemplate(model="toy", temperature=0.5, max_completion_tokens=2)
    async with Live(request_template=template) as live:
        engine = Scripted()
        await live.serve(engine.generate, toy_card(folder, "toy"))
        for fields in ({}, {"model": ""}, {"max_completion_tokens": 0, "temperature": None}):
            body = {"messages": [{"role": "user", "content": "x"}], **large, **fields}
            assert (await live.post("/v1/chat/completions", body))[0] == 200
            request = engine.requests.pop()
            assert request["stop_conditions"]["max_tokens"] == 2
            assert request["sampling_options"]["temperature"] == 0.5
        assert (await live.post("/v1/chat/completions", {}))[1]["error"]["param"] == "messages"
