"""A frontend is killed under its streams, and clients go on reading at another one."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from support import models
from support.services import free_port
from support.stack import Frontend, Process, Stack
from support.stream_client import How, StreamClient
from support.waiting import until

SLOW = ("--decode-speedup-ratio", "0.05")
"""A tenth of a second for each token."""
MESSAGES = {
    "model": "toy-model",
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 40,
    "temperature": 0,
}
CHAT = "/v1/chat/completions"
REQUESTS: tuple[tuple[str, dict[str, Any]], ...] = (
    (CHAT, {**MESSAGES, "stream_options": {"include_usage": True}}),
    (
        CHAT,
        {
            **MESSAGES,
            "n": 2,
            "temperature": 1,
            "seed": 7,
            "logprobs": True,
            "top_logprobs": 2,
            "stop": ["no such string"],
        },
    ),
    ("/v1/completions", {"model": "toy-model", "prompt": "hello", "max_tokens": 40, "temperature": 0}),
    ("/v1/messages", MESSAGES),
    ("/v1/responses", {"model": "toy-model", "input": "hello", "max_output_tokens": 40, "temperature": 0}),
)
KEYS = ("the-key-of-one", "the-key-of-another")


class Pair:
    """Two frontends and a worker."""

    worker: Process
    first: Frontend
    second: Frontend

    def __init__(self, stack: Stack, model: Path) -> None:
        self._stack = stack
        self._model = model
        self._port = free_port()

    async def start_worker(self) -> Process:
        command = ("-m", "dynamo.mocker", "--model-path", str(self._model), *SLOW)
        return await self._stack.python(*command, DYN_SYSTEM_PORT=str(self._port))

    async def counted(self, session: aiohttp.ClientSession, what: str) -> int:
        """How many requests the worker has begun to compute, or seen cancelled."""
        async with session.get(f"http://127.0.0.1:{self._port}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        prefix = f"dynamo_component_{what}_total{{"
        (line,) = (line for line in lines if line.startswith(prefix) and '"generate"' in line)
        return int(float(line.rpartition(" ")[2]))


async def start(stack: Stack, folder: Path, **environ: str) -> Pair:
    pair = Pair(stack, models.byte_level_model(folder / "toy-model"))
    pair.worker = await pair.start_worker()
    pair.first, pair.second = await asyncio.gather(stack.frontend(**environ), stack.frontend(**environ))
    for frontend in (pair.first, pair.second):
        if "DYN_API_KEY" not in environ:
            await frontend.until_models("toy-model")
        else:
            await frontend.process.line("model 'toy-model' can be served")
    return pair


def comparable(texts: list[str]) -> list[Any]:
    """The events without what differs between any two requests, ids and times; those of each choice by themselves."""
    found = []
    for text in texts:
        data = text.partition("data: ")[2]
        event: dict[str, Any] = {"done": True} if data == "[DONE]" else json.loads(data)
        response = event.get("response") or {}
        for each in (event, response, event.get("message") or {}):
            for name in ("id", "created", "created_at", "completed_at", "item_id"):
                each.pop(name, None)
        for item in (event.get("item") or {}, *response.get("output", ())):
            item.pop("id", None)
        found.append(event)
    return sorted(found, key=lambda event: event["choices"][0]["index"] if event.get("choices") else len(texts))


@pytest.mark.parametrize(("how", "network"), [("post", "file"), ("get", "etcd nats")])
async def test_a_stream_outlives_its_frontend_event_for_event_and_nothing_is_computed_twice(
    stack: Stack, tmp_path: Path, how: How, network: str
) -> None:
    """In each API, with several choices and their probabilities too."""
    pair = await start(stack, tmp_path)
    async with aiohttp.ClientSession() as session:
        clients = [StreamClient(session, path, body, how=how) for path, body in REQUESTS]
        answers = [await client.open(pair.first.url) for client in clients]
        for client, answer in zip(clients, answers, strict=True):
            await client.read(answer, until=lambda client=client: len(client.events) >= 8)
        pair.first.process.signal(signal.SIGKILL)
        for client in clients:
            assert not client.ended, "the kill was to come in the middle of it"
            async with await client.open(pair.second.url) as answer:
                await client.read(answer)
            assert client.error is None
        assert await pair.counted(session, "requests") == len(REQUESTS) + 1, "one has two choices"
        for (path, body), client in zip(REQUESTS, clients, strict=True):
            undisturbed = StreamClient(session, path, body)
            async with await undisturbed.open(pair.second.url) as answer:
                await undisturbed.read(answer)
            assert comparable(client.texts) == comparable(undisturbed.texts)


async def test_a_stream_belongs_to_its_key_and_ends_with_a_client_that_leaves(stack: Stack, tmp_path: Path) -> None:
    pair = await start(stack, tmp_path, DYN_API_KEY=",".join(KEYS))
    async with aiohttp.ClientSession() as session:
        client = StreamClient(session, CHAT, MESSAGES, key=KEYS[0])
        answer = await client.open(pair.first.url)
        await client.read(answer, until=lambda: len(client.events) >= 3)
        address = f"{pair.second.url}/v1/streams/{client.name}"
        async with session.get(address, headers={"Authorization": f"Bearer {KEYS[1]}"}) as refused:
            assert refused.status == 404
            assert "No worker keeps a stream" in (await refused.json())["error"]["message"]
        async with session.get(address) as refused:
            assert refused.status == 401
        answer.close()

        async def cancelled() -> bool:
            return await pair.counted(session, "cancellation") == 1

        await until(cancelled)
        async with session.get(address, headers={"Authorization": f"Bearer {KEYS[0]}"}) as refused:
            assert refused.status == 404


async def test_an_answer_whose_worker_is_lost_as_well_goes_on_after_the_last_event(
    stack: Stack, tmp_path: Path
) -> None:
    """It is computed again with the same seed, which follows from the name of the stream."""
    pair = await start(stack, tmp_path)
    sampled = {name: value for name, value in MESSAGES.items() if name != "temperature"}
    async with aiohttp.ClientSession() as session:
        client = StreamClient(session, CHAT, sampled)
        await client.read(await client.open(pair.first.url), until=lambda: len(client.events) >= 5)
        for process in (pair.first.process, pair.worker):
            process.signal(signal.SIGKILL)
            await process.ended()
        again = await pair.start_worker()
        await again.line(".generate as instance")
        await client.whole([pair.second.url])
        whole = StreamClient(session, CHAT, sampled)
        whole.rename(client.name)
        async with await whole.open(pair.second.url) as answer:
            await whole.read(answer)
        assert comparable(client.texts) == comparable(whole.texts)
        assert len(client.events) > 40
