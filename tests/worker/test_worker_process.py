"""A worker from its start to its end, whatever its engine does."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dynamo.protocols.errors import DynamoException
from dynamo.protocols.worker_name import worker_name
from dynamo.runtime import DistributedRuntime
from dynamo.runtime.discovery import Put
from support.hub import Hub
from support.stack import Process, Stack
from support.toys import samples, toy_folder
from support.waiting import PATIENCE, until

WORKER = ("-m", "dynamo.worker", "child", "tiny")
SERVING = "worker for 'tiny' at dyn://dynamo.backend.generate"
RUN = ("-m", "dynamo.cli.main", "in=dyn://dynamo.backend.generate", "out=child", "tiny")


async def pids_of(worker: Process) -> list[int]:
    return [int(pid) for pid in (await worker.line("processes ")).split()[1:]]


def lives(pid: int) -> bool:
    """A zombie does not: its parent has not asked for its exit code yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def records(here: DistributedRuntime) -> dict[str, bytes]:
    return await here.discovery.get_prefix("v1/")


async def stream_of(here: DistributedRuntime) -> Any:
    """A request that has begun and does not end."""
    client = await here.endpoint("dynamo.backend.generate").client()
    await client.wait_for_instances()
    stream = await client.generate({"token_ids": [7, 8]}, annotated=False)
    assert (await anext(stream))["token_ids"] == [5]
    return stream


@pytest.mark.parametrize("command", [WORKER, RUN], ids=["worker", "dynamo-run"])
async def test_the_death_of_the_engine_ends_the_worker(
    command: tuple[str, ...], stack: Stack, here: DistributedRuntime
) -> None:
    worker = await stack.python(*command)
    engine, grandchild = await pids_of(worker)
    await worker.line(SERVING)
    stream = await stream_of(here)
    os.kill(engine, signal.SIGKILL)
    with pytest.raises(DynamoException) as failed:
        await anext(stream)
    assert failed.value.migratable
    assert await worker.ended() == 1
    assert "error: the engine 'child' died: its process ended with -9" in worker.lines
    assert not lives(grandchild)
    assert await records(here) == {}


async def test_a_dead_engine_that_cannot_be_closed_does_not_keep_the_worker(
    stack: Stack, here: DistributedRuntime
) -> None:
    worker = await stack.python(*WORKER, "--trouble", "close")
    engine, grandchild = await pids_of(worker)
    await worker.line(SERVING)
    os.kill(engine, signal.SIGKILL)
    assert await worker.ended() == 1
    assert not lives(grandchild)


async def test_nothing_of_the_engine_is_left_after_sigterm(stack: Stack, here: DistributedRuntime) -> None:
    worker = await stack.python(*WORKER)
    pids = await pids_of(worker)
    await worker.line(SERVING)
    worker.signal(signal.SIGTERM)
    assert await worker.ended() == 0
    assert not [pid for pid in pids if lives(pid)]
    assert await records(here) == {}


async def test_a_second_signal_leaves_nothing_of_the_engine_either(stack: Stack) -> None:
    worker = await stack.python(*WORKER)
    pids = await pids_of(worker)
    await worker.line(SERVING)
    worker.signal(signal.SIGTERM)
    await until(lambda: not lives(pids[0]))  # its own child ignores SIGTERM, so the worker is still ending it
    worker.signal(signal.SIGTERM)
    assert await worker.ended() == 0
    assert not [pid for pid in pids if lives(pid)]


async def test_a_signal_ends_a_worker_whose_engine_does_not_answer_its_test(
    stack: Stack, here: DistributedRuntime
) -> None:
    never = str(10 * PATIENCE)
    worker = await stack.python(*WORKER, "--trouble", "silence", DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT=never)
    await worker.line("the child engine is silent")
    worker.signal(signal.SIGTERM)
    assert await worker.ended() == 130
    assert await records(here) == {}


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ("start", "error: no memory left"),
        ("canary", "error: the engine failed a test: it ended the answer without a token"),
    ],
)
async def test_a_worker_whose_engine_does_not_answer_registers_nothing(
    trouble: str, said: str, stack: Stack, here: DistributedRuntime
) -> None:
    listed = asyncio.Event()

    async def watch() -> None:
        async for change in here.discovery.watch("v1/"):
            if isinstance(change, Put):
                listed.set()

    here.own(watch(), "the test's watch")
    worker = await stack.python(*WORKER, "--trouble", trouble)
    assert await worker.ended() == 1
    assert said in worker.lines
    assert "Traceback" not in worker.output
    assert not listed.is_set()


async def test_an_unknown_flag_is_named_before_the_weights_are_fetched(tmp_path: Path, stack: Stack) -> None:
    hub = Hub()
    hub.add("org/toy", toy_folder(tmp_path / "toy"), model__safetensors=b"weights")
    hub.start()
    try:
        environ = {"HF_ENDPOINT": hub.endpoint, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "hub")}
        worker = await stack.python("-m", "dynamo.worker", "child", "--model", "org/toy", "--nope", **environ)
        assert await worker.ended() == 1
        assert "error: child: unrecognized arguments: --nope" in worker.lines
        assert "the child engine loads" not in worker.output
        assert "config.json" in hub.fetched
        assert "model.safetensors" not in hub.fetched
    finally:
        hub.stop()


async def test_a_misspelt_flag_of_the_worker_is_recognized(stack: Stack) -> None:
    worker = await stack.python(*WORKER, "--migration-limt=3")
    assert await worker.ended() == 1
    said = "error: child: unrecognized arguments: --migration-limt=3; did you mean '--migration-limit'?"
    assert said in worker.lines


async def test_a_follower_node_registers_nothing(stack: Stack, here: DistributedRuntime) -> None:
    worker = await stack.python(*WORKER, "--follower")
    await worker.line("this node of child follows its leader")
    assert await records(here) == {}
    worker.signal(signal.SIGTERM)
    assert await worker.ended() == 0


async def test_the_engines_metrics_are_shown_with_the_labels_of_its_endpoint(stack: Stack) -> None:
    worker = await stack.python(*WORKER, "--namespace", "ns", DYN_SYSTEM_PORT="0")
    await worker.line("worker for 'tiny' at dyn://ns.backend.generate")
    async with aiohttp.ClientSession() as http, http.get(f"{await status_of(worker)}/metrics") as answer:
        found = samples(await answer.text())
    ((labels, value),) = [
        (dict(re.findall(r'(\w+)="([^"]*)"', series)), value)
        for series, value in found.items()
        if series.startswith("child:generated_total{")
    ]
    assert labels.pop("worker_name") == worker_name(int(labels.pop("worker_id"), 16))
    assert labels == {
        "dynamo_namespace": "ns",
        "dynamo_component": "backend",
        "dynamo_endpoint": "generate",
        "model": "tiny",
        "kind": "tokens",
    }
    assert value == 1


async def test_the_engines_controls_are_called_over_http(stack: Stack) -> None:
    worker = await stack.python(*WORKER, DYN_SYSTEM_PORT="0")
    await worker.line(SERVING)
    url = f"{await status_of(worker)}/engine/control"

    async def post(name: str, data: bytes = b"", **headers: str) -> tuple[int, Any]:
        async with http.post(f"{url}/{name}", data=data, headers=headers) as answer:
            return answer.status, await answer.json()

    async with aiohttp.ClientSession() as http:
        assert await post("sleep", b'{"level": 2}') == (200, {"slept": 2})
        assert await post("wake_up") == (200, {"status": "ok"})
        assert await post("sleep") == (400, {"error": "sleep needs a level"})
        status, body = await post("sleep", b"[1]")
        assert (status, "JSON object" in body["error"]) == (400, True)
        status, body = await post("nap")
        assert (status, body["error"].partition(";")[0]) == (404, "this engine has no control 'nap'")
        assert (await post("wake_up", Origin="http://evil.example"))[0] == 403


async def test_a_worker_without_kv_routing_publishes_no_kv_events(stack: Stack) -> None:
    quiet = await stack.python("-m", "dynamo.worker", "mocker", "--disable-kv-routing")
    await quiet.line(SERVING)
    assert "kv_snapshot" not in quiet.output
    loud = await stack.python("-m", "dynamo.worker", "mocker")
    await loud.line(SERVING)
    assert "kv_snapshot" in loud.output


async def status_of(worker: Process) -> str:
    (url,) = re.findall(r"http://127\.0\.0\.1:\d+", await worker.line("status at http://"))
    return url
