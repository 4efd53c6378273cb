"""KV routing with real processes: mockers that publish their events, two frontends that follow them."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import aiohttp

from models import byte_level_model
from system.stack import PATIENCE, Frontend, Stack

PROMPT = "the quick brown fox jumps over the lazy dog " * 20


async def ask(frontend: Frontend, worker: int | None = None) -> tuple[int, int]:
    """The worker that answered, and how many tokens of the prompt it had cached."""
    nvext: dict[str, Any] = {"extra_fields": ["worker_id"], "backend_instance_id": worker}
    body = {"model": "m", "prompt": PROMPT, "max_tokens": 4, "nvext": nvext}
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
