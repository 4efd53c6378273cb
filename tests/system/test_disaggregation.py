"""Prefill and decode workers as processes: requests are split, and no death of a prefill worker reaches a client."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import aiohttp
import pytest

from support.stack import Frontend, Process, Stack
from support.waiting import until

PROMPT = "the quick brown fox jumps over the lazy dog " * 8
ALWAYS = ("--router-conditional-disagg-config", '{"policy": "always"}')


async def mocker(stack: Stack, mode: str, *more: str) -> tuple[Process, int]:
    flags = ("--model-path", "tiny", "--model-name", "m", "--block-size", "16", "--speedup-ratio", "20")
    process = await stack.python("-m", "dynamo.mocker", *flags, "--disaggregation-mode", mode, *more)
    line = await process.line("serves 'm'")
    return process, int(line.split("mocker ")[1].split()[0], 16)


async def ask(frontend: Frontend, text: str) -> tuple[dict[str, Any], str]:
    """The notes on the prefill, and the answer."""
    body = {
        "model": "m", "prompt": f"{text} {PROMPT}", "max_tokens": 8, "temperature": 0,
        "nvext": {"extra_fields": ["routing", "worker_id"]},
    }  # fmt: skip
    async with aiohttp.ClientSession() as http, http.post(f"{frontend.url}/v1/completions", json=body) as answer:
        assert answer.status == 200, await answer.text()
        told = await answer.json()
    assert told["usage"]["completion_tokens"] == 8
    return told["nvext"]["routing"][0]["prefill"], told["choices"][0]["text"]


@pytest.mark.parametrize("network", ["file", "nats"])
async def test_requests_are_split_until_the_prefill_worker_is_killed_and_again_when_one_returns(
    stack: Stack, network: str
) -> None:
    prefill, one = await mocker(stack, "prefill")
    await mocker(stack, "decode")
    frontend = await stack.frontend(*ALWAYS)
    await frontend.until_models("m")

    async def split(worker: int) -> bool:
        return (await ask(frontend, "hello"))[0]["worker_id"] == worker

    await until(lambda: split(one))
    asked = [asyncio.create_task(ask(frontend, f"number {number}")) for number in range(20)]
    prefill.signal(signal.SIGKILL)
    answers = await asyncio.gather(*asked)
    assert len({text for _, text in answers}) == 20

    async def local() -> bool:
        return (await ask(frontend, "again"))[0]["reason"] in ("no_prefill", "failed")

    await until(local)
    _, two = await mocker(stack, "prefill")
    await until(lambda: split(two))
