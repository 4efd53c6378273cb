"""A frontend is killed under responses in the background, and another one that shares its folder goes on with them."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from support.models import byte_level_model
from support.services import free_port
from support.stack import Frontend, Stack
from support.waiting import until

TOKENS = 30
SLOW = ("--decode-speedup-ratio", "0.05")
"""A tenth of a second for each token."""


async def computed(port: int) -> int:
    """How many requests the worker has begun to compute."""
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    (line,) = (each for each in lines if each.startswith("dynamo_component_requests_total{") and '"generate"' in each)
    return int(float(line.rpartition(" ")[2]))


async def ended(frontend: Frontend, id: str) -> Any:
    async def response() -> Any:
        found = await frontend.client.responses.retrieve(id)
        return None if found.status == "in_progress" else found

    return await until(response)


async def begin(frontend: Frontend, text: str, **fields: Any) -> Any:
    """A response in the background; it is sampled, so nobody answers the same by chance."""
    limits = {"max_output_tokens": TOKENS, "temperature": 1.0}
    return await frontend.client.responses.create(model="toy-model", input=text, background=True, **(limits | fields))


async def test_responses_of_a_dead_frontend_are_ended_by_another_without_computing_anything_again(
    stack: Stack, tmp_path: Path
) -> None:
    model, port = byte_level_model(tmp_path / "toy-model"), free_port()
    await stack.python("-m", "dynamo.mocker", "--model-path", str(model), *SLOW, DYN_SYSTEM_PORT=str(port))
    shared = ("--state-dir", str(tmp_path / "state"))
    first, second = await asyncio.gather(stack.frontend(*shared), stack.frontend(*shared))
    for frontend in (first, second):
        await frontend.until_models("toy-model")
    # It is read to the end and continued by a later one, whose frontend dies.
    before = await ended(first, (await begin(first, "Begin.")).id)
    begun = [await begin(first, text) for text in ("hello", "world")]
    begun.append(await begin(first, "more", previous_response_id=before.id))
    cancelled = await begin(first, "Stop.")

    async def under_way() -> bool:
        return await computed(port) == 5

    await until(under_way)
    first.process.signal(signal.SIGKILL)
    await first.process.ended()
    assert {(await second.client.responses.retrieve(each.id)).status for each in begun} == {"in_progress"}
    assert (await second.client.responses.cancel(cancelled.id)).status == "cancelled"
    for each in begun:
        done = await ended(second, each.id)
        assert done.status == "incomplete", done.error
        assert (done.id, done.created_at) == (each.id, each.created_at)
        assert done.usage.output_tokens == TOKENS
        assert done.output_text
    assert await computed(port) == 5
    assert (await second.client.responses.retrieve(cancelled.id)).status == "cancelled"
    assert await ended(second, (await begin(second, "Go on.", previous_response_id=begun[0].id)).id)


@pytest.mark.parametrize("worker_too", [False, True])
async def test_a_response_is_gone_on_with_by_the_next_process_of_the_same_folder(
    stack: Stack, tmp_path: Path, worker_too: bool
) -> None:
    """The next one starts after the first has died: it waits for the model, and then for nothing."""
    model = byte_level_model(tmp_path / "toy-model")
    mocker = ("-m", "dynamo.mocker", "--model-path", str(model), *SLOW)
    worker = await stack.python(*mocker)
    shared = ("--state-dir", str(tmp_path / "state"))
    first = await stack.frontend(*shared)
    await first.until_models("toy-model")
    begun = await begin(first, "hello")
    for process in (first.process, worker) if worker_too else (first.process,):
        process.signal(signal.SIGKILL)
        await process.ended()
    second = await stack.frontend(*shared)
    if worker_too:
        await stack.python(*mocker)
    done = await ended(second, begun.id)
    assert (done.status, done.usage.output_tokens) == ("incomplete", TOKENS)
