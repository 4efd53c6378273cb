"""Workers that die, leave, and come back, seen by clients of a frontend that stays."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import aiohttp
import openai
import pytest

from support.services import Etcd
from support.stack import TOY, Stack, ask


@pytest.mark.parametrize("network", ["file", "etcd"])
async def test_a_killed_worker_fails_its_streams_and_leaves_the_list_of_models(network: str, stack: Stack) -> None:
    worker = await stack.python(TOY)
    frontend = await stack.frontend()
    await frontend.until_models("toy")
    stream = await frontend.client.chat.completions.create(
        model="toy", messages=[{"role": "user", "content": "forever"}], stream=True
    )
    chunks = aiter(stream)
    await anext(chunks)
    worker.signal(signal.SIGKILL)
    with pytest.raises(openai.APIError) as failure:
        async for _ in chunks:
            pass
    assert failure.value.code == "disconnected"
    await frontend.until_models()


@pytest.mark.parametrize("network", ["file", "etcd"])
async def test_requests_go_on_when_one_of_two_workers_is_killed(network: str, stack: Stack) -> None:
    workers = [await stack.python(TOY) for _ in range(2)]
    frontend = await stack.frontend()
    await frontend.until_models("toy")
    await frontend.until_instances(2)
    assert [await ask(frontend, "before") for _ in range(2)] == ["before"] * 2
    workers[0].signal(signal.SIGKILL)
    await workers[0].ended()
    assert [await ask(frontend, "after") for _ in range(6)] == ["after"] * 6
    await frontend.until_instances(1)


@pytest.mark.parametrize("mode", ["round-robin", "kv"])
async def test_a_worker_that_is_gone_and_still_listed_makes_requests_unavailable(
    mode: str, etcd: Etcd, tmp_path: Path
) -> None:
    environ = {"DYN_TCP_RPC_HOST": "127.0.0.1", "ETCD_ENDPOINTS": etcd.url, "ETCD_LEASE_TTL": "600"}
    async with Stack(tmp_path, environ) as stack:
        worker = await stack.python(TOY)
        frontend = await stack.frontend("--router-mode", mode)
        await frontend.until_models("toy")
        assert await ask(frontend, "before") == "before"
        worker.signal(signal.SIGKILL)
        await worker.ended()
        with pytest.raises(openai.InternalServerError, match="can be reached") as failure:
            await ask(frontend, "after")
        assert failure.value.status_code == 503


async def test_a_terminated_worker_finishes_its_stream_and_then_exits(stack: Stack) -> None:
    worker = await stack.python(TOY)
    frontend = await stack.frontend()
    await frontend.until_models("toy")
    stream = await frontend.client.chat.completions.create(
        model="toy", messages=[{"role": "user", "content": "hold"}], stream=True
    )
    chunks = aiter(stream)
    text = (await anext(chunks)).choices[0].delta.content or ""
    worker.signal(signal.SIGTERM)
    await frontend.until_models()
    worker.signal(signal.SIGUSR1)
    text += "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])
    assert text == "first last"
    assert await worker.ended() == 0


async def test_a_second_signal_ends_a_worker_at_once(stack: Stack) -> None:
    worker = await stack.python(TOY)
    frontend = await stack.frontend()
    await frontend.until_models("toy")
    stream = await frontend.client.chat.completions.create(
        model="toy", messages=[{"role": "user", "content": "forever"}], stream=True
    )
    await anext(aiter(stream))
    worker.signal(signal.SIGTERM)
    await worker.line("leaving")
    worker.signal(signal.SIGTERM)
    assert await worker.ended() == 1


async def test_a_mocker_terminated_while_it_starts_leaves_at_once(stack: Stack) -> None:
    flags = ("--model-path", "tiny", "--num-workers", "2", "--startup-time", "3600")
    worker = await stack.python("-m", "dynamo.mocker", *flags)
    await worker.line("ready in 3600 s")
    worker.signal(signal.SIGTERM)
    assert await worker.ended() == 0
    assert all("ready in 3600 s" in line or "dynamo.pipeline.output_formats" in line for line in worker.lines[:-1])


async def test_a_terminated_frontend_finishes_its_stream_and_then_exits(stack: Stack) -> None:
    worker = await stack.python(TOY)
    frontend = await stack.frontend()
    await frontend.until_models("toy")
    stream = await frontend.client.chat.completions.create(
        model="toy", messages=[{"role": "user", "content": "hold"}], stream=True
    )
    chunks = aiter(stream)
    text = (await anext(chunks)).choices[0].delta.content or ""
    frontend.process.signal(signal.SIGTERM)
    await frontend.until_draining()
    worker.signal(signal.SIGUSR1)
    text += "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])
    assert text == "first last"
    assert await frontend.process.ended() == 0


@pytest.mark.parametrize("network", ["file", "etcd+nats"])
@pytest.mark.parametrize("moment", ["before the first item", "in the middle", "of a whole answer"])
async def test_a_client_that_leaves_is_seen_by_the_handler(network: str, moment: str, stack: Stack) -> None:
    worker = await stack.python(TOY)
    frontend = await stack.frontend()
    await frontend.until_models("toy")
    word = "forever" if moment == "in the middle" else "wait"
    body = {
        "model": "toy",
        "stream": moment != "of a whole answer",
        "messages": [{"role": "user", "content": word}],
    }
    async with aiohttp.ClientSession() as session:
        asking = asyncio.create_task(session.post(f"{frontend.url}/v1/chat/completions", json=body))
        await worker.line(f"started {word}")
        if moment == "in the middle":
            answer = await asking
            await answer.content.readany()
            answer.close()
        else:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
    await worker.line("cancelled")
