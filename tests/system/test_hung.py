"""Workers that hang, fail their own checks or are full, as clients of a frontend see them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp

from support.stack import TOY, Frontend, Stack, ask
from support.waiting import until

ENGINE = """
import asyncio, os, pathlib

hangs = pathlib.Path(os.environ["HANGS"])

async def generate(request):
    prompt = len(request["token_ids"])
    for position in range(prompt, prompt + request["stop_conditions"]["max_tokens"]):
        while hangs.exists() and position % 4 == 0:
            await asyncio.sleep(0.01)
        yield {"token_ids": [300 + position]}
    print("answered", flush=True)
"""
"""Each token follows from its position, so that another worker can continue. It hangs in the middle of an answer."""


async def test_streams_leave_a_python_engine_that_hangs_and_it_returns_when_it_answers(
    stack: Stack, tmp_path: Path
) -> None:
    engine, hangs = tmp_path / "engine.py", tmp_path / "hangs"
    engine.write_text(ENGINE)
    command = ["-m", "dynamo.cli.main", "in=dyn://dynamo.backend.generate", f"out=pytok:{engine}", "tiny"]
    command += ["--migration-limit", "100"]
    hung = await stack.python(*command, HANGS=str(hangs))
    await stack.python(*command, HANGS=str(tmp_path / "never"))
    frontend = await stack.frontend("--stream-stall-secs", "1", "--first-token-stall-secs", "1")
    await frontend.until_instances(2)
    undisturbed = await told(frontend)
    hangs.touch()

    async def moved() -> bool:
        assert await told(frontend) == undisturbed
        return "moving it to another" in frontend.process.output

    await until(moved)
    hangs.unlink()
    answers = hung.lines.count("answered")

    async def back() -> bool:
        assert await told(frontend) == undisturbed
        return hung.lines.count("answered") > answers

    await until(back)


async def told(frontend: Frontend) -> str:
    """The text of a stream."""
    messages: Any = [{"role": "user", "content": "go on"}]
    stream = await frontend.client.chat.completions.create(
        model="tiny", messages=messages, max_tokens=12, temperature=0, stream=True
    )
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])


async def test_a_worker_that_fails_its_own_checks_gets_no_requests(stack: Stack) -> None:
    checked = {
        "DYN_SYSTEM_PORT": "0",
        "DYN_HEALTH_CHECK_ENABLED": "true",
        "DYN_CANARY_WAIT_TIME": "0.05",
        "DYN_HEALTH_CHECK_REQUEST_TIMEOUT": "0.2",
    }
    failing = await stack.python(TOY, **checked)
    frontend = await stack.frontend()
    await frontend.until_models("toy")
    await ask(frontend, "break")
    await failing.line("endpoint generate does not answer")
    await stack.python(TOY)
    await frontend.until_instances(2)
    before = failing.lines.count("started hello")
    assert [await ask(frontend, "hello") for _ in range(6)] == ["hello"] * 6
    assert failing.lines.count("started hello") == before


async def test_a_request_is_refused_with_retry_after_when_all_workers_are_full(stack: Stack) -> None:
    slow = ("--decode-speedup-ratio", "0.001", "--engine-request-limit", "1", "--engine-queue-limit", "0")
    for _ in range(2):
        await stack.python("-m", "dynamo.mocker", "--model-path", "tiny", *slow)
    frontend = await stack.frontend()
    await frontend.until_instances(2)
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 1000, "stream": True}
    async with aiohttp.ClientSession() as session:
        running = [await session.post(f"{frontend.url}/v1/completions", json=body) for _ in range(2)]
        for answer in running:
            assert answer.status == 200
            await answer.content.readany()
        async with session.post(f"{frontend.url}/v1/completions", json=body) as refused:
            assert refused.status == 503
            assert int(refused.headers["Retry-After"]) > 0
        for answer in running:
            answer.close()
