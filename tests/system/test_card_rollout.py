"""Workers with another card take over while requests come, as in a rolling update: none fails."""

from __future__ import annotations

import asyncio
import itertools
import signal
from pathlib import Path

import aiohttp

from support import models
from support.stack import Frontend, Stack
from support.waiting import until

REQUESTS, WIDTH = 200, 8
SLOW = ("--decode-speedup-ratio", "0.05")
"""A tenth of a second for each token after the first: a long answer lasts until the test has enough of it."""


class Asking:
    """Requests one after the other in each of a few lanes."""

    def __init__(self, frontend: Frontend) -> None:
        self._url = f"{frontend.url}/v1/chat/completions"
        self._numbers = itertools.count()
        self.answered = 0
        self.failed: list[str] = []

    async def run(self) -> None:
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as lanes:
            for _ in range(WIDTH):
                lanes.create_task(self._lane(session))

    async def _lane(self, session: aiohttp.ClientSession) -> None:
        while (number := next(self._numbers)) < REQUESTS:
            body = {
                "model": "m", "messages": [{"role": "user", "content": f"{number} " * 50}],
                "max_tokens": 1,
            }  # fmt: skip
            async with session.post(self._url, json=body) as answer:
                said = await answer.text()
            self.answered += 1
            if answer.status != 200:
                self.failed.append(f"{answer.status}: {said}")

    async def until(self, answered: int) -> None:
        await until(lambda: self.answered >= min(answered, REQUESTS))


async def test_no_request_fails_while_workers_with_another_card_take_over(stack: Stack, tmp_path: Path) -> None:
    """Also while an old worker finishes what it has, and where the tokenizers differ."""
    old, new = models.byte_level_model(tmp_path / "old"), models.sentencepiece_model(tmp_path / "new")
    mocker = ("-m", "dynamo.mocker", "--model-name", "m", "--model-path")
    leaving = await stack.python(*mocker, str(old), *SLOW, DYN_NAMESPACE="old")
    frontend = await stack.frontend()
    await frontend.until_models("m")
    begun = await frontend.client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "a long answer"}], max_tokens=1000, stream=True
    )
    chunks = aiter(begun)
    await anext(chunks)
    asking = Asking(frontend)
    run = asyncio.create_task(asking.run())
    await asking.until(40)
    await stack.python(*mocker, str(new), DYN_NAMESPACE="new")
    await frontend.until_instances(2)
    await asking.until(asking.answered + 40)
    leaving.signal(signal.SIGTERM)
    await leaving.line("leaving: waiting up to")
    await asking.until(asking.answered + 40)
    assert await anext(chunks)
    await begun.close()
    assert await leaving.ended() == 0
    await run
    assert asking.failed == []
