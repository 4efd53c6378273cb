"""Two workers behind a frontend with `--router-mode kv`: does the router know what each of their engines holds?"""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp

from support.stack import Frontend

PATIENCE = 900.0
"""Only ends a test that hangs."""
WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog"]


def text(number: int) -> str:
    return " ".join([WORDS[number % len(WORDS)], *WORDS * 24])


async def ask(frontend: Frontend, number: int, model: str = "m", block: int = 32, **nvext: Any) -> tuple[int, int, int]:
    """The worker that answered, the tokens it had cached, and those the router knew it had."""
    body = {
        "model": model,
        "prompt": text(number),
        "max_tokens": 4,
        "nvext": {"extra_fields": ["worker_id", "routing"], **nvext},
    }
    async with aiohttp.ClientSession() as http, http.post(f"{frontend.url}/v1/completions", json=body) as answer:
        assert answer.status == 200, await answer.text()
        replied = await answer.json()
    (routing,) = replied["nvext"]["routing"]
    usage = replied["usage"]
    usable = (usage["prompt_tokens"] - 1) // block  # an engine computes the last token in any case
    known = min(routing["chosen"]["overlap_blocks"], usable) * block
    return routing["worker_id"], usage["prompt_tokens_details"]["cached_tokens"], known


async def until_known(frontend: Frontend, number: int, worker: int, model: str = "m", **nvext: Any) -> int:
    """Tokens of a prompt this worker has cached, once the router knows of them."""
    async with asyncio.timeout(PATIENCE):
        while True:
            _, cached, known = await ask(frontend, number, model, backend_instance_id=worker, **nvext)
            if known == cached > 0:
                return cached


async def follows_engines(frontend: Frontend, workers: list[int], **more: Any) -> None:
    """Prompts, also salted ones, go to the worker that has them, which had as much cached as the router knew."""
    homes = {}
    for number in range(4):
        homes[number], cached, _ = await ask(frontend, number, **more, backend_instance_id=workers[number % 2])
        assert cached == 0
        assert await until_known(frontend, number, homes[number], **more) > 100
    for number, home in homes.items():
        worker, cached, known = await ask(frontend, number, **more)
        assert (worker, cached) == (home, known)
    for salt in ("a", "b"):
        home, cached, known = await ask(frontend, 0, **more, cache_salt=salt)
        assert cached == known == 0
        assert await until_known(frontend, 0, home, **more, cache_salt=salt) > 100
    async with aiohttp.ClientSession() as http, http.post(f"{frontend.url}/clear_kv_blocks") as answer:
        assert len((await answer.json())["cleared_workers"]) == 2
    async with asyncio.timeout(PATIENCE):
        while (await ask(frontend, 0, **more, backend_instance_id=workers[0]))[2]:
            """A router hears of it by events."""
