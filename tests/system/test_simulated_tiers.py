"""Host memory and a disk below the cache: real mocker processes and the simulator find the same."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import msgspec
import pytest

from dynamo.engines.mocker import MockerArgs
from dynamo.simulate import SimulationConfig, read_request_trace, simulate
from support.models import byte_level_model
from support.stack import Stack
from support.waiting import until

BLOCKS = 32
ORDER = [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 0, 2, 4, 6, 7, 5, 3, 1, 0]


@pytest.mark.parametrize(("host", "disk"), [(96, 0), (20, 76)])
async def test_simulated_and_real_workers_restore_the_same_tokens(
    host: int, disk: int, stack: Stack, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.jsonl"
    model = byte_level_model(tmp_path / "model")
    below = ("--num-g2-blocks", str(host), "--num-g3-blocks", str(disk))
    flags = ("--num-gpu-blocks-override", str(BLOCKS), *below, "--speedup-ratio", "20")
    await stack.python("-m", "dynamo.mocker", "--model-path", str(model), "--model-name", "m", *flags)
    recorded = {"DYN_REQUEST_TRACE": "1", "DYN_REQUEST_TRACE_FILE_PATH": str(trace)}
    frontend = await stack.frontend("--router-mode", "kv", **recorded)
    await frontend.until_models("m")
    found = []
    async with aiohttp.ClientSession() as http:
        for number in ORDER:
            body = {"model": "m", "prompt": [200 + number] * 700, "max_tokens": 4}
            async with http.post(f"{frontend.url}/v1/completions", json=body) as answer:
                assert answer.status == 200, await answer.text()
                found.append((await answer.json())["usage"]["prompt_tokens_details"]["cached_tokens"])
        async with http.get(f"{frontend.url}/router/decisions", params={"limit": len(ORDER)}) as answer:
            chosen = [each["chosen"] for each in (await answer.json())["decisions"]]
    # The router knows where the blocks are.
    assert any(each["host_blocks"] for each in chosen)
    assert any(each["disk_blocks"] for each in chosen) == bool(disk)
    # Ten whole blocks of a prompt: two prompts fit into the cache, some eight more below it.
    assert sum(found) > 640 * 8
    engine = MockerArgs(num_gpu_blocks=BLOCKS, num_g2_blocks=host, num_g3_blocks=disk, speedup_ratio=20)
    await until(lambda: trace.read_bytes().count(b"\n") == len(ORDER))  # written by a thread of the frontend
    rows = [msgspec.json.decode(line)["request"] for line in trace.read_bytes().splitlines()]
    assert [row["cached_tokens"] for row in rows] == found
    config = SimulationConfig(engine=engine, concurrency=1)
    report = await asyncio.to_thread(simulate, config, lambda: read_request_trace(trace))
    assert report.cached_tokens == sum(found)
    assert report.restored_tokens["disk" if disk else "host"] > 640 * 6
