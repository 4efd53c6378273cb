"""What a fleet says of its workers while they are taken out, lost and ended; real processes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dynamo.cli.top.command import documents
from support.models import byte_level_model
from support.stack import Frontend, Process, Stack
from support.waiting import until

FLAGS = ("--block-size", "16", "--decode-speedup-ratio", "0.1")
ENDLESS = {"ignore_eos": True, "stream_options": {"include_usage": True}}


class Fleet:
    """Two mockers and a frontend, and the document of the fleet as it changes."""

    def __init__(self, frontend: Frontend, workers: dict[str, Process]) -> None:
        self.frontend = frontend
        self.workers = workers
        self.document: dict[str, Any] = {}

    async def order(self, worker: str, action: str) -> tuple[int, dict[str, Any]]:
        url = f"{self.frontend.url}/fleet/workers/{worker}/{action}"
        async with aiohttp.ClientSession() as http, http.post(url) as answer:
            return answer.status, await answer.json()

    async def answered_by(self) -> str:
        body = {"model": "m", "prompt": "hello", "max_tokens": 2, "nvext": {"extra_fields": ["worker_name"]}}
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{self.frontend.url}/v1/completions", json=body) as answer,
        ):
            return str((await answer.json())["nvext"]["worker_name"]["decode"])

    def health(self, worker: str) -> str | None:
        rows = [row for row in self.document.get("workers", {}).values() if row["name"] == worker]
        return rows[0]["health"] if rows else None

    def row_of_gone(self, worker: str) -> dict[str, Any] | None:
        return next((row for row in self.document.get("gone", {}).values() if row["name"] == worker), None)

    def events(self, worker: str) -> list[str]:
        return [one["kind"] for one in self.document.get("events", {}).values() if one["name"] == worker]

    async def long_answers(self, count: int, begun: asyncio.Event) -> list[tuple[int, str | None]]:
        """How many tokens came, and why each answer ended; `begun` is set when all have begun."""
        waiting = count

        async def one() -> tuple[int, str | None]:
            nonlocal waiting
            stream = await self.frontend.client.completions.create(
                model="m", prompt="a long story", max_tokens=100, stream=True, extra_body=ENDLESS
            )
            tokens, reason, answered = 0, None, False
            async for chunk in stream:
                if chunk.usage:
                    tokens = chunk.usage.completion_tokens
                if chunk.choices:
                    reason = chunk.choices[0].finish_reason
                    if not answered and chunk.choices[0].text:
                        answered = True
                        waiting -= 1
                        if not waiting:
                            begun.set()
            return tokens, reason

        return await asyncio.gather(*[one() for _ in range(count)])


@asynccontextmanager
async def fleet_of_two(stack: Stack, folder: Path) -> AsyncIterator[Fleet]:
    model = byte_level_model(folder / "model")
    workers = {}
    for _ in range(2):
        process = await stack.python("-m", "dynamo.mocker", "--model-path", str(model), "--model-name", "m", *FLAGS)
        line = await process.line("serves 'm'")
        workers[line.split()[-1]] = process
    frontend = await stack.frontend("--router-mode", "round-robin", "--migration-limit", "3")
    await frontend.until_models("m")
    await frontend.until_instances(2)
    fleet = Fleet(frontend, workers)

    async def follow() -> None:
        async for fleet.document in documents(frontend.url, None):
            pass

    following = asyncio.create_task(follow())
    try:
        await until(lambda: all(fleet.health(name) == "ready" for name in workers))
        yield fleet
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


@pytest.mark.parametrize("network", ["file", "etcd+nats"])
async def test_a_worker_is_taken_out_taken_back_lost_and_ended(stack: Stack, tmp_path: Path, network: str) -> None:
    async with fleet_of_two(stack, tmp_path) as fleet:
        one, two = fleet.workers
        assert {await fleet.answered_by() for _ in range(4)} == {one, two}

        status, told = await fleet.order(one, "drain")
        assert (status, told["worker"], told["action"]) == (200, one, "drain")
        await until(lambda: fleet.health(one) == "draining")
        assert {await fleet.answered_by() for _ in range(4)} == {two}

        assert (await fleet.order(told["worker_id"], "resume"))[0] == 200
        await until(lambda: fleet.health(one) == "ready")
        assert {await fleet.answered_by() for _ in range(4)} == {one, two}

        begun = asyncio.Event()
        answers = asyncio.create_task(fleet.long_answers(6, begun))
        await begun.wait()
        fleet.workers[one].signal(signal.SIGKILL)
        assert await answers == [(100, "length")] * 6
        lost = await until(lambda: fleet.row_of_gone(one))
        assert (lost["health"], lost["moved"], lost["pid"]) == ("lost", 3, fleet.workers[one].child.pid)
        await until(lambda: fleet.events(one)[-1:] == ["lost"])
        assert fleet.health(one) is None

        status, _ = await fleet.order(two, "remove")
        assert status == 200
        assert await fleet.workers[two].ended() == 0
        left = await until(lambda: fleet.row_of_gone(two))
        assert (left["health"], left["moved"]) == ("left", 0)
        assert "lost" not in fleet.events(two)


async def test_an_order_names_a_worker_and_an_action_that_exist(stack: Stack, tmp_path: Path) -> None:
    async with fleet_of_two(stack, tmp_path) as fleet:
        one, two = fleet.workers
        status, told = await fleet.order("nobody-00000", "drain")
        assert status == 404
        assert one in told["error"]["message"]
        assert two in told["error"]["message"]
        status, told = await fleet.order(one, "destroy")
        assert (status, told["error"]["message"]) == (
            404,
            "A worker can be told to drain, resume or remove, not 'destroy'.",
        )
