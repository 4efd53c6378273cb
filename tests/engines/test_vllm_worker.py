"""examples/vllm_worker.py around a real vLLM, where VLLM_PYTHON names an interpreter that has one."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dynamo.runtime import DistributedRuntime, RuntimeConfig
from support.kv_reader import ask_snapshot, content
from support.stack import Frontend, Process, Stack
from support.tiny_llama import tiny_llama

PYTHON = os.environ.get("VLLM_PYTHON", "")
WORKER = Path(__file__).parents[2] / "examples" / "vllm_worker.py"
PATIENCE = 300.0
"""Only ends a test that hangs: vLLM takes a minute to start."""
BLOCK = 32
WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog"]

pytestmark = pytest.mark.skipif(not PYTHON, reason="VLLM_PYTHON names no interpreter that has vLLM")


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    environ = {
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "TORCHDYNAMO_DISABLE": "1",
    }
    async with Stack(tmp_path, environ) as stack:
        yield stack
        # Killed, it would leave vLLM's own processes behind.
        for process in stack.processes:
            if process.child.returncode is None:
                process.signal(signal.SIGTERM)
        for process in stack.processes:
            async with asyncio.timeout(PATIENCE):
                assert await process.child.wait() == 0


async def engines(stack: Stack, folder: Path, count: int) -> dict[int, Process]:
    """By instance id."""
    model = tiny_llama(folder, max_position_embeddings=2048)
    flags = {
        "--endpoint": "ns.backend.generate", "--model": model, "--served-model-name": "m", "--dtype": "float32",
        "--block-size": BLOCK, "--max-model-len": 1920,
        "--kv-cache-memory-bytes": 64 << 20, "--num-gpu-blocks-override": 64,
    }  # fmt: skip
    words = [str(word) for pair in flags.items() for word in pair]
    started = [await stack.python(str(WORKER), "--enforce-eager", *words, interpreter=PYTHON) for _ in range(count)]
    return {await serving(process): process for process in started}


async def serving(process: Process) -> int:
    async with asyncio.timeout(PATIENCE):
        while True:
            for line in process.lines:
                if "serving dyn://ns.backend.generate as instance" in line:
                    return int(line.rpartition(" ")[2], 16)
                assert "(end of output)" not in line, process.output
            await asyncio.sleep(0.1)


def text(number: int) -> str:
    return " ".join([WORDS[number % len(WORDS)], *WORDS * 24])


async def ask(frontend: Frontend, number: int, **nvext: Any) -> tuple[int, int, int]:
    """The worker that answered, the tokens it had cached, and those the router knew it had."""
    body = {
        "model": "m",
        "prompt": text(number),
        "max_tokens": 4,
        "nvext": {"extra_fields": ["worker_id", "routing"], **nvext},
    }
    async with aiohttp.ClientSession() as http, http.post(f"{frontend.url}/v1/completions", json=body) as answer:
        assert answer.status == 200, await answer.text()
        told = await answer.json()
    (routing,) = told["nvext"]["routing"]
    usage = told["usage"]
    usable = (usage["prompt_tokens"] - 1) // BLOCK  # an engine computes the last token in any case
    known = min(routing["chosen"]["overlap_blocks"], usable) * BLOCK
    return routing["worker_id"], usage["prompt_tokens_details"]["cached_tokens"], known


async def until_known(frontend: Frontend, number: int, worker: int, **nvext: Any) -> int:
    """Tokens of a prompt this worker has cached, once the router knows of them."""
    async with asyncio.timeout(PATIENCE):
        while True:
            _, cached, known = await ask(frontend, number, backend_instance_id=worker, **nvext)
            if known == cached > 0:
                return cached


async def test_the_router_knows_what_each_engine_holds(stack: Stack, tmp_path: Path) -> None:
    workers = list(await engines(stack, tmp_path / "model", 2))
    frontend = await stack.frontend("--router-mode", "kv")
    await frontend.until_models("m")
    await frontend.until_instances(2)
    homes = {}
    for number in range(4):
        homes[number], cached, _ = await ask(frontend, number, backend_instance_id=workers[number % 2])
        assert cached == 0
        assert await until_known(frontend, number, homes[number]) > 100
    for number, home in homes.items():
        worker, cached, known = await ask(frontend, number)
        assert (worker, cached) == (home, known)
    for salt in ("a", "b"):
        home, cached, known = await ask(frontend, 0, cache_salt=salt)
        assert cached == known == 0
        assert await until_known(frontend, 0, home, cache_salt=salt) > 100


async def test_a_client_that_leaves_ends_its_request_in_the_engine(stack: Stack, tmp_path: Path) -> None:
    (worker,) = await engines(stack, tmp_path / "model", 1)
    frontend = await stack.frontend()
    await frontend.until_models("m")
    stream = await frontend.client.completions.create(
        model="m", prompt=text(0), max_tokens=1400, stream=True, extra_body={"ignore_eos": True}
    )
    async for _ in stream:
        await stream.close()
        break
    environ = {"DYN_FILE_KV": str(tmp_path / "discovery"), "DYN_TCP_RPC_HOST": "127.0.0.1"}
    async with DistributedRuntime(config=RuntimeConfig.from_env(environ)) as here:
        load = await here.endpoint("ns.backend.load_metrics").client()
        async with asyncio.timeout(PATIENCE):
            await load.wait_for_instances()
            while True:
                (told,) = [item async for item in await load.round_robin({}, annotated=False)]
                if told["ranks"] and told["ranks"][0]["active_decode_blocks"] == 0:
                    break
        assert len(content(await ask_snapshot(here, worker))) * BLOCK < 1400
