"""`python -m dynamo.sglang` as a process, over the stand-in."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dynamo.protocols.errors import DynamoException
from dynamo.runtime import DistributedRuntime, RuntimeConfig
from support.stack import SOURCE, Stack

STAND_IN = Path(__file__).parent / "stand_in"
SERVING = "worker for 'tiny' at dyn://dynamo.backend.generate"


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    environ = {"PYTHONPATH": f"{SOURCE}:{STAND_IN}", "DYN_TCP_RPC_HOST": "127.0.0.1"}
    async with Stack(tmp_path, environ) as stack:
        yield stack


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[DistributedRuntime]:
    environ = {"DYN_FILE_KV": str(tmp_path / "discovery"), "DYN_TCP_RPC_HOST": "127.0.0.1"}
    async with DistributedRuntime(config=RuntimeConfig.from_env(environ)) as runtime:
        yield runtime


@pytest.mark.parametrize("module", ["dynamo.sglang", "dynamo.sglang.worker"])
async def test_it_answers_and_leaves_when_it_is_asked_to(module: str, stack: Stack, here: DistributedRuntime) -> None:
    """SGLang installs a handler for SIGTERM of its own; the worker's must stay."""
    worker = await stack.python("-m", module, "tiny", "--page-size", "8")
    await worker.line(SERVING)
    client = await here.endpoint("dynamo.backend.generate").client()
    await client.wait_for_instances()
    stream = await client.generate({"token_ids": [7], "stop_conditions": {"max_tokens": 3}}, annotated=False)
    outputs = [item async for item in stream]
    assert [token for output in outputs for token in output["token_ids"]] == [8, 9, 10]
    worker.signal(signal.SIGTERM)
    assert await worker.ended() == 0


async def test_the_death_of_a_process_of_sglang_ends_the_worker(stack: Stack, here: DistributedRuntime) -> None:
    worker = await stack.python("-m", "dynamo.sglang", "tiny")
    await worker.line(SERVING)
    client = await here.endpoint("dynamo.backend.generate").client()
    await client.wait_for_instances()
    stream = await client.generate({"token_ids": [7]}, annotated=False)
    await anext(stream)
    os.kill(worker.child.pid, signal.SIGQUIT)  # as SGLang's watchdog does
    with pytest.raises(DynamoException) as failed:
        _ = [item async for item in stream]
    assert failed.value.migratable
    assert await worker.ended() == 1
    assert "error: the engine 'sglang' died: one of its processes failed" in worker.lines


async def test_a_flag_that_sglang_does_not_have_ends_the_command_before_anything_is_loaded(stack: Stack) -> None:
    worker = await stack.python("-m", "dynamo.sglang", "tiny", "--mem-fraction-dynamic", "0.5")
    assert await worker.ended() == 1
    assert "error: SGLang: unrecognized arguments: --mem-fraction-dynamic 0.5" in worker.lines


async def test_without_the_package_one_line_says_what_to_install_and_no_model_is_fetched(tmp_path: Path) -> None:
    async with Stack(tmp_path, {"PYTHONPATH": str(SOURCE), "HF_ENDPOINT": "http://127.0.0.1:9"}) as stack:
        for command in (("-m", "dynamo.sglang"), ("-m", "dynamo.cli.main", "in=http", "out=sglang")):
            worker = await stack.python(*command, "no/such-model")
            assert await worker.ended() == 1
            assert worker.lines[:-1] == [  # the last says that the output ended
                "error: cannot load the engine 'sglang': No module named 'sglang'; "
                "pip install sglang (for NVIDIA GPUs on Linux)"
            ]
