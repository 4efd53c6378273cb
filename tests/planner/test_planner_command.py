"""`python -m dynamo.planner` with real processes."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import aclosing
from pathlib import Path

import openai
import pytest

from dynamo.run.top import documents
from support.running import run
from support.services import free_port
from support.stack import Stack

PROGRAM = [sys.executable, "-m", "dynamo.planner"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--config", "{}"], "error: --config: deployment: environment local needs the file of `dynamo serve`"),
        (["--config", "gone.yaml"], "error: gone.yaml: No such file or directory"),
    ],
)
def test_a_wrong_configuration_is_refused_in_one_line(tmp_path: Path, words: list[str], sentence: str) -> None:
    done = run(tmp_path, *words, program=PROGRAM)
    assert done.returncode == 2
    assert done.stderr.decode().startswith(sentence)
    assert done.stderr.count(b"\n") == 1


async def test_requests_under_way_survive_a_scale_down(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "serve.yaml").write_text(f"""
components:
  worker: {{kind: mocker, replicas: 2, flags: {{model-path: tiny, speedup-ratio: 0.5}}}}
  frontend: {{flags: {{http-port: {port}, router-mode: kv, migration-limit: 0}}}}
""")
    config = {
        "deployment": str(tmp_path / "serve.yaml"),
        "frontend_url": f"http://127.0.0.1:{port}",
        "load_adjustment_interval_seconds": 0.2,
        "throughput_adjustment_interval_seconds": 0.6,
    }
    async with Stack(tmp_path, {"DYN_LOG": "info"}) as stack:
        planner = await stack.python("-m", "dynamo.planner", "--config", json.dumps(config))
        await planner.line("planning every 0.2 s")
        client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)
        gone = asyncio.create_task(planner.line("workers stay at 1"))

        async def ask() -> list[int]:
            lengths = []
            while not gone.done():
                answer = await client.completions.create(
                    model="tiny", prompt="Once upon a time", max_tokens=60, extra_body={"ignore_eos": True}
                )
                assert answer.usage
                lengths.append(answer.usage.completion_tokens)
            return lengths

        async with client:
            answered = await asyncio.gather(*(ask() for _ in range(4)))
        assert {length for lengths in answered for length in lengths} == {60}
        assert any("workers go from 2 to 1" in line for line in planner.lines)
        async with aclosing(documents(f"http://127.0.0.1:{port}", None)) as states:
            fleet = await anext(fleet async for fleet in states if fleet["planners"])
        [row] = fleet["planners"].values()
        assert any("workers go from 2 to 1" in sentence["text"] for sentence in row["sentences"])
