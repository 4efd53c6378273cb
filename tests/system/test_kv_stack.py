"""KV routing with real processes: mockers that publish their events, two frontends that follow them."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dynamo.runtime import DistributedRuntime
from support.kv_reader import ask_snapshot, content
from support.models import byte_level_model
from support.stack import Frontend, Stack
from support.waiting import PATIENCE, until

PROMPT = "the quick brown fox jumps over the lazy dog " * 20
BLOCK = 16
KNOWN = "dynamo_component_router_kv_known_blocks"
ACTIVE = "dynamo_component_router_active_requests"
HEARD = "dynamo_component_router_replica_requests_total"


async def ask(frontend: Frontend, worker: int | None = None, prompt: str | list[int] = PROMPT) -> tuple[int, int]:
    """The worker that answered, and how many tokens of the prompt it had cached."""
    nvext: dict[str, Any] = {"extra_fields": ["worker_id"], "backend_instance_id": worker}
    body = {"model": "m", "prompt": prompt, "max_tokens": 4, "nvext": nvext}
    async with aiohttp.ClientSession() as http, http.post(f"{frontend.url}/v1/completions", json=body) as answer:
        assert answer.status == 200, await answer.text()
        told = await answer.json()
    details = told["usage"].get("prompt_tokens_details") or {}
    return told["nvext"]["worker_id"]["decode_worker_id"], details.get("cached_tokens", 0)


async def test_a_prompt_returns_to_its_worker_through_any_frontend_until_that_is_killed(
    stack: Stack, tmp_path: Path
) -> None:
    model = byte_level_model(tmp_path / "model")
    flags = ("--model-path", str(model), "--model-name", "m", "--block-size", "16", "--speedup-ratio", "100")
    workers = {}
    for _ in range(2):
        process = await stack.python("-m", "dynamo.mocker", *flags)
        line = await process.line("serves 'm'")
        workers[int(line.split("mocker ")[1].split()[0], 16)] = process
    kv = ("--router-mode", "kv", "--router-replica-sync")
    frontends = [await stack.frontend(*kv), await stack.frontend(*kv)]
    for frontend in frontends:
        await frontend.until_models("m")
        await frontend.until_instances(2)
    first, cached = await ask(frontends[0])
    assert cached == 0
    async with asyncio.timeout(PATIENCE):
        for frontend in frontends:  # the second learns of it from the worker, be it by a snapshot
            while await overlap(frontend, first) == 0:
                await ask(frontend, first)
    worker, cached = await ask(frontends[1])
    assert worker == first
    assert cached > 100
    workers[first].signal(signal.SIGKILL)
    await workers[first].ended()
    other = next(id for id in workers if id != first)
    for frontend in frontends:
        assert (await ask(frontend))[0] == other


async def overlap(frontend: Frontend, worker: int) -> int:
    """Blocks this worker held of the last prompt, as the frontend saw it."""
    async with aiohttp.ClientSession() as http, http.get(f"{frontend.url}/router/decisions?limit=1") as answer:
        decisions = (await answer.json())["decisions"]
    if not decisions:
        return 0
    return sum(one["overlap_blocks"] for one in decisions[0]["candidates"] if one["worker_id"] == worker)


@pytest.mark.parametrize("frontends", [1, 2])
@pytest.mark.parametrize("events", [True, False])
async def test_five_requests_over_blocks_a_to_g_go_where_their_prefix_is(
    stack: Stack, tmp_path: Path, here: DistributedRuntime, events: bool, frontends: int
) -> None:
    model = ("--model-path", str(byte_level_model(tmp_path / "model")), "--model-name", "m")
    size = ("--block-size", str(BLOCK), "--speedup-ratio", "100", "--num-workers", "2")
    await stack.python("-m", "dynamo.mocker", "--endpoint", "ns.backend.generate", *model, *size)
    # Without events a frontend learns what others sent from their bookings.
    learning = () if events else ("--use-kv-events", "false", "--router-replica-sync")
    doors = [await stack.frontend("--router-mode", "kv", *learning) for _ in range(frontends)]
    for door in doors:
        await door.until_models("m")
        await door.until_instances(2)
    a, b = await doors[0].instances()
    if not events:
        await hear_each_other(doors, a)
    known = 0
    for turn, (letters, pinned, place, new) in enumerate(
        [("AB", a, a, 2), ("ACD", a, a, 2), ("ACE", b, b, 3), ("ACDF", None, a, 1), ("ACEG", None, b, 1)]
    ):
        assert (await ask(doors[turn % frontends], pinned, blocks(letters)))[0] == place, letters
        known += new
        for door in doors:
            await until_metric(door, KNOWN, known)
            await until_metric(door, ACTIVE, 0)
    assert [len(content(await ask_snapshot(here, worker))) for worker in (a, b)] == [5, 4]


async def test_idle_workers_compute_ahead_what_three_running_requests_begin_with(
    stack: Stack, tmp_path: Path, here: DistributedRuntime
) -> None:
    model = ("--model-path", str(byte_level_model(tmp_path / "model")), "--model-name", "m")
    size = ("--block-size", str(BLOCK), "--num-workers", "3", "--speedup-ratio", "0.2")
    await stack.python("-m", "dynamo.mocker", "--endpoint", "ns.backend.generate", *model, *size)
    door = await stack.frontend("--router-mode", "kv")
    await door.until_models("m")
    await door.until_instances(3)
    shared = [token % 200 for token in range(72 * BLOCK)]
    async with contextlib.AsyncExitStack() as running:
        for tail in (1, 2, 3):
            body = {"model": "m", "prompt": [*shared, tail], "max_tokens": 800, "stream": True}
            http = await running.enter_async_context(aiohttp.ClientSession())
            answer = await running.enter_async_context(http.post(f"{door.url}/v1/completions", json=body))
            assert answer.status == 200, await answer.text()
            assert await answer.content.readline()
        await until_metric(door, "dynamo_component_router_prefix_copies_total", 2)
        await until_metric(door, ACTIVE, 3)
        for worker in await door.instances():
            assert len(content(await ask_snapshot(here, worker))) >= 72


def blocks(letters: str) -> list[int]:
    """One block per letter."""
    return [ord(letter) + at for letter in letters for at in range(BLOCK)]


async def hear_each_other(frontends: list[Frontend], worker: int) -> None:
    """A publisher is reached some time after it starts: send prompts too short for a block until it is."""
    async with asyncio.timeout(PATIENCE):
        for speaker in frontends:
            for listener in frontends:
                before = await metric(listener, HEARD)
                while listener is not speaker and await metric(listener, HEARD) == before:
                    await ask(speaker, worker, [1, 2, 3])


async def until_metric(frontend: Frontend, name: str, value: float) -> None:
    async def reached() -> bool:
        return await metric(frontend, name) == value

    await until(reached)


async def metric(frontend: Frontend, name: str) -> float:
    async with aiohttp.ClientSession() as http, http.get(f"{frontend.url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    (value,) = [line.split()[1] for line in lines if line.startswith(f"{name}{{")]
    return float(value)
