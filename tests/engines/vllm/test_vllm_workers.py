"""Workers around a real vLLM as processes, behind a frontend."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from dynamo.model import bundled
from support.adapter_files import make_adapter
from support.kv_asking import ask, follows_engines, text, until_known
from support.stack import Frontend, Process, Stack
from support.waiting import until

PATIENCE = 900.0
"""Only ends a test that hangs: vLLM takes a minute to start."""
ROW = {"type": "array", "items": {"enum": [7, 8]}, "minItems": 3, "maxItems": 3}
FREE = {"ignore_eos": True}
GUIDED = (
    {"guided_json": {"type": "array", "items": ROW, "minItems": 40, "maxItems": 40}},
    {"guided_regex": "([a-f] ){200}!"},
)


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with Stack(tmp_path, {"OMP_NUM_THREADS": "1"}) as stack:
        yield stack
        # Killed, a worker could not end vLLM's own processes.
        for process in stack.processes:
            if process.child.returncode is None:
                process.signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE):
            for process in stack.processes:
                await process.child.wait()


async def workers(stack: Stack, count: int, *more: str) -> dict[int, Process]:
    """By instance id; `more` are flags of vLLM."""
    words = ("in=dyn://ns.backend.generate", "out=vllm", str(bundled()), "--model-name", "m", "--migration-limit", "3")
    flags = ("--max-model-len", "1024", "--kv-cache-memory-bytes", "64M", *more)
    run = ("-m", "dynamo.cli.main", *words, "--", *flags)
    started = [await stack.python(*run, DYN_SYSTEM_PORT="0", DYN_SYSTEM_HOST="127.0.0.1") for _ in range(count)]
    return {await serving(process): process for process in started}


async def serving(process: Process) -> int:
    async with asyncio.timeout(PATIENCE):
        while True:
            for line in process.lines:
                if "serving dyn://ns.backend.generate as instance" in line:
                    return int(line.rpartition(" ")[2], 16)
                assert "(end of output)" not in line, process.output
            await asyncio.sleep(0.1)


async def test_the_router_knows_what_each_engine_holds(stack: Stack) -> None:
    running = list(await workers(stack, 2))
    frontend = await stack.frontend("--router-mode", "kv")
    await frontend.until_models("m")
    await frontend.until_instances(2)
    await follows_engines(frontend, running)


@pytest.mark.parametrize("killed", ["EngineCore", "VLLM::Worker"])
async def test_a_worker_whose_engine_is_killed_leaves_and_its_streams_move(stack: Stack, killed: str) -> None:
    victim, _ = (await workers(stack, 2)).values()
    frontend = await stack.frontend("--router-mode", "round-robin")
    await frontend.until_models("m")
    await frontend.until_instances(2)
    # Two of each, so that each worker has one.
    asked = [form for form in (FREE, *GUIDED) for _ in range(2)]
    begun = [asyncio.Event() for _ in asked]
    streams = [asyncio.create_task(whole_answer(frontend, *each)) for each in zip(asked, begun, strict=True)]
    for each in begun:
        await each.wait()
    family = psutil.Process(victim.child.pid).children(recursive=True)
    os.kill(next(each.pid for each in family if killed in " ".join(each.cmdline())), signal.SIGKILL)
    answers = await asyncio.gather(*streams)
    assert [tokens for _, tokens in answers[:2]] == [500, 500]
    for said, _ in answers[2:4]:
        assert all(len(row) == 3 for row in json.loads(said))
        assert len(json.loads(said)) == 40
    for said, _ in answers[4:]:
        assert re.fullmatch(str(GUIDED[1]["guided_regex"]), said)
    assert any("moving it to another" in line for line in frontend.process.lines)
    assert await victim.ended() != 0
    await frontend.until_instances(1)
    # The resource tracker of multiprocessing ends a moment after the worker whose pipe it reads.
    await until(lambda: not any(map(alive, family)))


def alive(process: psutil.Process) -> bool:
    return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)


async def whole_answer(frontend: Frontend, form: dict[str, Any], begun: asyncio.Event) -> tuple[str, int]:
    """What was said, and its tokens; `begun` is set at the first ones."""
    stream = await frontend.client.completions.create(
        model="m", prompt=text(0), max_tokens=500, temperature=1.0, stream=True, stream_options={"include_usage": True},
        extra_body=form,
    )  # fmt: skip
    said, tokens = "", 0
    async for chunk in stream:
        begun.set()
        said += "".join(choice.text for choice in chunk.choices)
        if chunk.usage is not None:
            tokens = chunk.usage.completion_tokens
    return said, tokens


async def test_a_killed_worker_takes_vllms_processes_with_it(stack: Stack) -> None:
    (worker,) = (await workers(stack, 1)).values()
    family = psutil.Process(worker.child.pid).children(recursive=True)
    assert any("EngineCore" in " ".join(each.cmdline()) for each in family)
    worker.signal(signal.SIGKILL)
    await worker.child.wait()
    await until(lambda: not any(map(alive, family)))


async def test_an_adapter_is_asked_for_by_its_name_and_has_prefixes_of_its_own(stack: Stack, tmp_path: Path) -> None:
    ((instance, worker),) = (await workers(stack, 1, "--enable-lora")).items()
    frontend = await stack.frontend("--router-mode", "kv")
    await frontend.until_models("m")
    body = {"lora_name": "poet", "source": {"uri": make_adapter(tmp_path / "poet", seed=1).as_uri()}}
    loras = (await worker.line("status at ")).rpartition(" ")[2].removesuffix("/health") + "/v1/loras"
    async with aiohttp.ClientSession() as http, http.post(loras, json=body) as answer:
        assert answer.status == 200, await answer.text()
    await frontend.until_models("m", "poet")
    texts = set()
    for model in ("m", "poet"):
        assert (await ask(frontend, 0, model))[1:] == (0, 0)
        assert await until_known(frontend, 0, instance, model) > 100
        made = await frontend.client.completions.create(model=model, prompt="The", max_tokens=16, temperature=0)
        texts.add(made.choices[0].text)
    assert len(texts) == 2
    async with aiohttp.ClientSession() as http, http.delete(f"{loras}/poet") as answer:
        assert answer.status == 200, await answer.text()
    await frontend.until_models("m")
