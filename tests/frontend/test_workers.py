from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import pytest
from openai import AsyncOpenAI
from openai.types import Batch

from dynamo.engines.echo import EchoCore
from dynamo.frontend.processes import reserve
from dynamo.frontend.server import ServerError
from dynamo.llm import register_llm
from dynamo.protocols.card import ModelInput, ModelType
from dynamo.runtime import DistributedRuntime, RuntimeConfig
from dynamo.worker import serve_engine
from support.certificates import certificate, renewed, shown_by, shown_in
from support.models import byte_level_model
from support.serving import CHAT, MODEL, registered
from support.stack import SOURCE
from support.waiting import until


class Process:
    """`python -m dynamo.frontend` with its log."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.log: list[str] = []

    async def line(self, pattern: str) -> re.Match[str]:
        """Wait for a line of the log."""
        assert self.process.stderr
        while line := (await self.process.stderr.readline()).decode():
            self.log.append(line)
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"'{pattern}' never came:\n{''.join(self.log)}")

    def children(self) -> set[int]:
        pid = self.process.pid
        return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}

    async def everybody_gone(self) -> None:
        """The children hold the pipe of the log too: it ends with the last of them."""
        assert self.process.stderr
        await self.process.stderr.read()


@asynccontextmanager
async def frontend(tmp_path: Path, *flags: str) -> AsyncIterator[Process]:
    environ = {**os.environ, "PYTHONPATH": str(SOURCE), "DYN_FILE_KV": str(tmp_path / "discovery")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dynamo.frontend", "--http-port", "0", *flags, env=environ, stderr=asyncio.subprocess.PIPE
    )
    running = Process(process)
    try:
        yield running
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await running.everybody_gone()


@asynccontextmanager
async def worker(tmp_path: Path, delay: float = 0.0) -> AsyncIterator[None]:
    config = RuntimeConfig.from_env({"DYN_FILE_KV": str(tmp_path / "discovery")}, discovery_backend="file")
    model = byte_level_model(tmp_path / "model")
    async with DistributedRuntime(config=config) as runtime:
        endpoint = runtime.endpoint("test.backend.generate")
        await register_llm(ModelInput.Tokens, ModelType.Backend, endpoint, model, MODEL)
        engine = EchoCore(delay)
        serving = asyncio.create_task(serve_engine(endpoint, engine))
        await registered(endpoint)
        yield
        runtime.shutdown()
        await serving
        await engine.close()


async def metrics(url: str) -> dict[str, float]:
    """Started requests by process."""
    async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics") as answer:
        text = await answer.text()
    found = re.findall(r'requests_started_total\{http_worker="(\d)",model="tiny"\} ([0-9.]+)', text)
    return {index: float(count) for index, count in found}


async def ask_until_both_answered(url: str) -> int:
    """Each question takes a connection of its own, and the kernel chooses the process it goes to."""
    asked = 0
    while len(await metrics(url)) < 2:
        async with aiohttp.ClientSession() as http, http.post(f"{url}/v1/chat/completions", json=CHAT) as answer:
            assert answer.status == 200
            asked += 1
    return asked


async def test_processes_share_a_port_and_export_each_others_metrics(tmp_path: Path) -> None:
    async with worker(tmp_path), frontend(tmp_path, "--http-workers", "2") as parent:
        url = (await parent.line(r"serving on (http://127.0.0.1:\d+)"))[1]
        asked = await ask_until_both_answered(url)
        assert sum((await metrics(url)).values()) == asked

        victim = min(parent.children())
        os.kill(victim, signal.SIGKILL)
        await parent.line(r"worker process \d ended with 137, starting another")
        await parent.line(r"worker process \d serves")
        assert victim not in parent.children()

        parent.process.send_signal(signal.SIGTERM)
        assert await parent.process.wait() == 0


THRESHOLD = "active_prefill_tokens_threshold"


async def thresholds(url: str) -> set[int | None]:
    """What many connections are told: with two processes it is as good as certain that both were asked."""
    seen = set()
    for _ in range(40):
        async with aiohttp.ClientSession() as http, http.get(f"{url}/busy_threshold") as answer:
            (one,) = (await answer.json())["thresholds"]
            seen.add(one[THRESHOLD])
    return seen


async def set_threshold(url: str, value: int) -> int:
    """Returns what the answer says is set."""
    body = {"model": MODEL, THRESHOLD: value}
    async with aiohttp.ClientSession() as http, http.post(f"{url}/busy_threshold", json=body) as answer:
        assert answer.status == 200
        told: int = (await answer.json())[THRESHOLD]
        return told


async def test_a_threshold_that_is_set_is_set_in_all_processes(tmp_path: Path) -> None:
    async with worker(tmp_path), frontend(tmp_path, "--http-workers", "2") as parent:
        url = (await parent.line(r"serving on (http://127.0.0.1:\d+)"))[1]
        assert await thresholds(url) == {None}
        for value in (1000, 2000, 500):
            assert await set_threshold(url, value) == value
            assert await thresholds(url) == {value}
        await asyncio.gather(*(set_threshold(url, value) for value in range(1, 30)))
        (last,) = await thresholds(url)

        os.kill(min(parent.children()), signal.SIGKILL)
        await parent.line(r"worker process \d ended with 137, starting another")
        await parent.line(r"worker process \d serves")
        assert await thresholds(url) == {last}


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_sighup_makes_all_processes_read_a_renewed_certificate(tmp_path: Path, workers: str) -> None:
    cert, key = certificate(tmp_path, "server")
    flags = ("--http-workers", workers, "--tls-cert-path", str(cert), "--tls-key-path", str(key))
    async with frontend(tmp_path, *flags) as parent:
        port = int((await parent.line(r"serving on https://127.0.0.1:(\d+)"))[1])
        old = shown_in(cert)
        assert {await shown_by(port) for _ in range(40)} == {old}
        new = renewed(cert, key)
        parent.process.send_signal(signal.SIGHUP)
        for _ in range(int(workers)):
            await parent.line("read the TLS certificate .*server.pem again")
        assert {await shown_by(port) for _ in range(40)} == {new}
        parent.process.send_signal(signal.SIGTERM)
        assert await parent.process.wait() == 0


async def test_children_leave_when_their_parent_is_killed(tmp_path: Path) -> None:
    async with frontend(tmp_path, "--http-workers", "2") as parent:
        await parent.line("serving on")
        parent.process.kill()
        await parent.line("the parent process is gone: leaving too")
        await parent.everybody_gone()


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_what_prevents_a_start_is_reported_and_ends_all(tmp_path: Path, workers: str) -> None:
    flags = ("--http-workers", workers, "--tls-cert-path", "missing.pem", "--tls-key-path", "missing.pem")
    async with frontend(tmp_path, *flags) as parent:
        await parent.line("error: cannot read the TLS certificate missing.pem")
        assert await parent.process.wait() == 1


async def test_a_single_process_drains_on_sigterm(tmp_path: Path) -> None:
    async with frontend(tmp_path, "--api-key", "k") as process:
        await process.line(r"serving on http://127.0.0.1:\d+")
        await process.line(r"only this machine can connect; --http-host 0.0.0.0 opens the port to others")
        process.process.send_signal(signal.SIGTERM)
        assert await process.process.wait() == 0


def test_a_port_that_others_share_is_still_taken() -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(ServerError, match="already in use"):
            reserve("127.0.0.1", other.getsockname()[1])


def test_a_reserved_port_keeps_others_away() -> None:
    held, port = reserve("127.0.0.1", 0)
    with held, socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))


async def test_each_process_continues_the_responses_of_the_others(tmp_path: Path) -> None:
    async with worker(tmp_path), frontend(tmp_path, "--http-workers", "2") as parent:
        url = (await parent.line(r"serving on (http://127.0.0.1:\d+)"))[1]
        previous = None
        while len(await metrics(url)) < 2 or previous is None:
            body = {"model": MODEL, "input": "hi", "previous_response_id": previous, "max_output_tokens": 1}
            async with aiohttp.ClientSession() as http, http.post(f"{url}/v1/responses", json=body) as answer:
                assert answer.status == 200, await answer.text()
                previous = (await answer.json())["id"]
        for _ in range(40):
            async with aiohttp.ClientSession() as http, http.get(f"{url}/v1/responses/{previous}") as answer:
                assert answer.status == 200


async def test_a_batch_survives_the_kill_of_its_server(tmp_path: Path) -> None:
    state = tmp_path / "state"
    flags = ("--state-dir", str(state), "--http-batch-concurrency", "1")
    lines = [
        {"custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions", "body": CHAT}
        for number in range(60)
    ]
    content = b"\n".join(msgspec.json.encode(line) for line in lines)

    def journalled() -> list[bytes]:
        journals = list((state / "batches").glob("*.journal"))
        return journals[0].read_bytes().splitlines()[1:] if journals else []

    async with worker(tmp_path, delay=0.002):
        async with frontend(tmp_path, *flags) as first:
            url = (await first.line(r"serving on (http://127.0.0.1:\d+)"))[1]
            async with AsyncOpenAI(base_url=f"{url}/v1", api_key="k") as client:
                file = await client.files.create(file=("in.jsonl", content), purpose="batch")
                made = await client.batches.create(
                    input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
                )
            await until(lambda: len(journalled()) > 2)
            first.process.kill()
            await first.process.wait()
        before = [msgspec.json.decode(line)["record"] for line in journalled()[:2]]
        async with frontend(tmp_path, *flags) as second:
            url = (await second.line(r"serving on (http://127.0.0.1:\d+)"))[1]
            async with AsyncOpenAI(base_url=f"{url}/v1", api_key="k") as client:

                async def completed() -> Batch | None:
                    batch = await client.batches.retrieve(made.id)
                    return batch if batch.status == "completed" else None

                batch = await until(completed)
                answers = (await client.files.content(batch.output_file_id)).text.splitlines()
    records = [msgspec.json.decode(answer) for answer in answers]
    assert [record["custom_id"] for record in records] == [line["custom_id"] for line in lines]
    assert records[:2] == before
