"""A frontend is killed under its streams, and clients go on reading at another one."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from support import models
from support.services import free_port
from support.stack import Frontend, Stack
from support.stream_client import How, StreamClient

SLOW = ("--decode-speedup-ratio", "0.05")
"""A tenth of a second for each token."""
MESSAGES = {
    "model": "toy-model",
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 40,
    "temperature": 0,
}
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {**MESSAGES, "stream_options": {"include_usage": True}},
    "/v1/completions": {"model": "toy-model", "prompt": "hello", "max_tokens": 40, "temperature": 0},
    "/v1/messages": MESSAGES,
    "/v1/responses": {"model": "toy-model", "input": "hello", "max_output_tokens": 40, "temperature": 0},
}


class Pair:
    """Two frontends and a worker."""

    def __init__(self, stack: Stack, status_port: int, first: Frontend, second: Frontend) -> None:
        self.stack = stack
        self.first = first
        self.second = second
        self._status = f"http://127.0.0.1:{status_port}/metrics"

    async def computed(self, session: aiohttp.ClientSession) -> int:
        """How many requests the worker has begun to compute."""
        async with session.get(self._status) as answer:
            lines = (await answer.text()).splitlines()
        (line,) = (
            line for line in lines if line.startswith("dynamo_component_requests_total{") and '"generate"' in line
        )
        return int(float(line.rpartition(" ")[2]))


async def start(stack: Stack, folder: Path, *flags: str, **environ: str) -> Pair:
    port = free_port()
    model = models.byte_level_model(folder / "toy-model")
    await stack.python(
        "-m", "dynamo.mocker", "--model-path", str(model), *SLOW, *flags, DYN_SYSTEM_PORT=str(port), **environ
    )
    first, second = await stack.frontend(**environ), await stack.frontend(**environ)
    for frontend in (first, second):
        await frontend.until_models("toy-model")
    return Pair(stack, port, first, second)


def comparable(path: str, texts: list[str]) -> list[Any]:
    """The events without what differs between any two requests: ids and times."""
    found = []
    for text in texts:
        *_, data = text.partition("data: ")
        if data == "[DONE]":
            found.append(data)
            continue
        event = json.loads(data)
        for each in (event, event.get("response") or {}, event.get("message") or {}):
            for name in ("id", "created", "created_at", "completed_at"):
                each.pop(name, None)
        for name in ("item_id",):
            event.pop(name, None)
        for item in (event.get("item") or {}, *((event.get("response") or {}).get("output") or [])):
            item.pop("id", None)
        found.append(event)
    return found


@pytest.mark.parametrize("network", ["file", "etcd nats"])
@pytest.mark.parametrize("how", ["post", "get"])
async def test_a_stream_outlives_its_frontend_byte_for_byte_and_nothing_is_computed_twice(
    stack: Stack, tmp_path: Path, how: How, network: str
) -> None:
    """In each API, and while one more client reads at the other frontend."""
    pair = await start(stack, tmp_path)
    async with aiohttp.ClientSession() as session:
        clients = {path: StreamClient(session, path, body, how=how) for path, body in REQUESTS.items()}
        answers = {path: await client.open(pair.first.url) for path, client in clients.items()}
        for path, client in clients.items():
            await client.read(answers[path], until=lambda client=client: len(client.events) >= 8)
        pair.first.process.signal(signal.SIGKILL)
        for path, client in clients.items():
            begun = len(client.events)
            assert begun < 40, "the kill was to come in the middle of it"
            async with await client.open(pair.second.url) as answer:
                await client.read(answer)
            assert client.connections == 2
            assert all(event.id for event in client.events)
        assert await pair.computed(session) == len(REQUESTS)
        for path, body in REQUESTS.items():
            undisturbed = StreamClient(session, path, body)
            async with await undisturbed.open(pair.second.url) as answer:
                await undisturbed.read(answer)
            assert comparable(path, clients[path].texts) == comparable(path, undisturbed.texts)
