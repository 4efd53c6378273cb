"""Frontends are killed too: clients that reconnect read on, and nothing is computed twice while its worker lives."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from chaos.disturbed import client_session, seed_of_run
from chaos.forks import Forks
from chaos.questions import Question, questions, steady
from support.services import free_port
from support.stack import Process, Stack, environ_of
from support.stream_client import StreamClient

REQUESTS = int(os.environ.get("CHAOS_REQUESTS", "1250"))
AT_ONCE = 24
EVERY = 3.0
"""Seconds between two kills."""
MOCKER = ("-m", "dynamo.mocker", "--model-path", "tiny", "--migration-limit", "5", "--decode-speedup-ratio", "0.2")


class Place:
    """A process, and one after another that takes its place."""

    def __init__(self, forks: Forks, command: tuple[str, ...], environ: dict[str, str], sign: str) -> None:
        self.process: Process
        self._forks = forks
        self._command = command
        self._environ = environ
        self._sign = sign

    async def start(self) -> None:
        self.process = await self._forks.fork(self._command, self._environ)
        await self.process.line(self._sign)

    async def kill(self) -> None:
        self.process.signal(signal.SIGKILL)
        await self.process.ended()
        await self.start()


class Deployment:
    def __init__(self, stack: Stack, folder: Path, frontends: int, workers: int) -> None:
        self._forks = Forks(stack, folder)
        ports = [free_port() for _ in range(frontends)]
        self.status_ports = [free_port() for _ in range(workers)]
        self.urls = [f"http://127.0.0.1:{port}" for port in ports]
        self.frontends = [
            Place(self._forks, ("-m", "dynamo.frontend", "--http-port", str(port)), {}, "serving on ") for port in ports
        ]
        self.workers = [
            Place(self._forks, MOCKER, {"DYN_SYSTEM_PORT": str(port)}, ".generate as instance")
            for port in self.status_ports
        ]

    async def start(self) -> None:
        await self._forks.start()
        await asyncio.gather(*(worker.start() for worker in self.workers))
        await asyncio.gather(*(frontend.start() for frontend in self.frontends))
        for frontend in self.frontends:
            await frontend.process.line("can be served")

    async def computed(self, session: aiohttp.ClientSession) -> int:
        """How many choices workers have begun to compute."""
        total = 0.0
        for port in self.status_ports:
            async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
                lines = (await answer.text()).splitlines()
            prefix = "dynamo_component_requests_total{"
            total += sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(prefix))
        return int(total)


def comparable(texts: list[str]) -> list[Any]:
    """The events without what varies, those of each choice by themselves."""
    data = [text.partition("data: ")[2] for text in texts]
    events = [{"choices": None, "done": True} if each == "[DONE]" else steady(json.loads(each)) for each in data]
    return sorted(events, key=lambda event: event["choices"][0]["index"] if event.get("choices") else len(texts))


async def _kill(places: list[Place], seed: int, every: float, killed: list[float]) -> None:
    """Kill one after each pause of this many seconds, or as soon as the one before it has been replaced."""
    chance = random.Random(f"kills {seed}")
    due = time.monotonic()
    while True:
        due = max(due + every, time.monotonic())
        await asyncio.sleep(due - time.monotonic())
        await chance.choice(places).kill()
        killed.append(time.monotonic())


@pytest.mark.parametrize("network", ["etcd", "etcd nats"])
@pytest.mark.parametrize("victims", ["frontends", "frontends and workers"])
@pytest.mark.chaos
async def test_clients_that_reconnect_get_every_event(
    tmp_path: Path, network: str, victims: str, request: pytest.FixtureRequest
) -> None:
    await disturb(tmp_path, environ_of(network, request), victims, REQUESTS, EVERY)


async def test_a_short_run_of_kills_of_frontends_and_workers(tmp_path: Path) -> None:
    await disturb(tmp_path, {"DYN_TCP_RPC_HOST": "127.0.0.1"}, "frontends and workers", 120, 1.0)


async def disturb(folder: Path, environ: dict[str, str], victims: str, requests: int, every: float) -> None:
    seed = seed_of_run(3)
    pool = [msgspec.structs.replace(each, body={**each.body, "stream": True}) for each in questions(seed, 48, "tiny")]
    async with Stack(folder, environ) as stack, client_session() as session:
        deployment = Deployment(stack, folder, frontends=3, workers=3)
        await deployment.start()
        chance = random.Random(f"order {seed}")

        def client(question: Question) -> StreamClient:
            how = chance.choice(("post", "get"))
            return StreamClient(session, question.path, question.body, how=how)  # type: ignore[arg-type]

        undisturbed = [comparable(await client(each).whole(deployment.urls[:1])) for each in pool]
        before = await deployment.computed(session)
        drawn = [chance.randrange(len(pool)) for _ in range(requests)]
        order = iter(drawn)
        starts = itertools.cycle(range(len(deployment.urls)))
        different: list[str] = []
        connections = 0

        async def read() -> None:
            nonlocal connections
            for number in order:
                asked, first = client(pool[number]), next(starts)
                texts = await asked.whole([*deployment.urls[first:], *deployment.urls[:first]])
                connections += asked.connections - 1
                if comparable(texts) != undisturbed[number]:
                    different.append(f"{pool[number]}: {asked.name} after {asked.connections} connections")

        killed: list[float] = []
        places = deployment.frontends + (deployment.workers if "workers" in victims else [])
        killing = asyncio.create_task(_kill(places, seed, every, killed))
        try:
            await asyncio.gather(*(read() for _ in range(AT_ONCE)))
            assert not killing.done(), killing.exception()
        finally:
            killing.cancel()
            await asyncio.gather(killing, return_exceptions=True)
        counts = f"{requests} streams, {connections} reconnections, {len(killed)} kills, {len(different)} differ"
        print(f"\nseed {seed}, {victims}: {counts}", flush=True)
        assert not different, different[:5]
        assert killed
        if victims == "frontends":
            computed = await deployment.computed(session) - before
            assert computed == sum(pool[number].body.get("n", 1) for number in drawn)
