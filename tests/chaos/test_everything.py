"""Frontends, workers, the supervisor of one host and the planner of another are killed, one every few seconds.

`make chaos` asks CHAOS_REQUESTS streams over two hosts; it needs root for their network namespaces.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import aiohttp
import msgspec
import pytest
from msgspec import Struct

from chaos.disturbed import client_session, seed_of_run
from chaos.questions import Question, questions
from chaos.test_frontends import comparable
from support.hosts import Host, cannot_make_hosts, this_thread_on, two_hosts
from support.services import Etcd, Nats, free_port
from support.stack import Process, Stack
from support.stream_client import StreamClient
from support.waiting import until

COUNTED = str(Path(__file__).with_name("counted_mocker.py"))
REQUESTS = int(os.environ.get("CHAOS_REQUESTS", "1250"))
EVERY = float(os.environ.get("CHAOS_KILL_SECONDS", "3"))
AT_ONCE = 24
READY = {"supervisor": "all components are ready", "planner": "planning every"}
"""What each says once its processes are ready."""
MOCKER = ("--model-path", "tiny", "--migration-limit", "20", "--decode-speedup-ratio", "0.2")


class Killed(Struct, frozen=True):
    at: float
    name: str
    pid: int


class Site:
    """One host: what controls its processes, and those that it started, by the records that it keeps of them."""

    controller: Process

    def __init__(
        self, stack: Stack, folder: Path, host: Host, kind: str, ports: list[int], environ: dict[str, str]
    ) -> None:
        self.kind = kind
        self.urls = [f"http://{host.address}:{port}" for port in ports]
        self.counts = folder / "counts"
        self._stack = stack
        self._host = host
        folder.mkdir()
        self._state = folder / "state"
        self._file = folder / "serve.yaml"
        worker = [sys.executable, COUNTED, str(self.counts), *MOCKER]
        waits = {"model-wait-secs": 60, "model-restart-secs": 600}
        frontends = {
            f"frontend-{number}": {"kind": "frontend", "flags": {"http-host": host.address, "http-port": port, **waits}}
            for number, port in enumerate(ports)
        }
        components = {"worker": {"command": worker, "replicas": 2}, **frontends}
        self._file.write_text(json.dumps({"components": components, "drain_seconds": 20}))
        self._environ = {**environ, "XDG_STATE_HOME": str(self._state), "DYN_TCP_RPC_HOST": host.address}

    async def start(self) -> None:
        """The controller; it starts what is missing, and adopts what it left when it was killed."""
        words = ["-c", "from dynamo.cli.main import dynamo; dynamo()", "serve", str(self._file)]
        if self.kind == "planner":
            words = ["-m", "dynamo.planner", "--deployment", str(self._file), "--frontend-url", self.urls[0]]
            words += ["--min-endpoint", "2", "--max-gpu-budget", "3", "--load-adjustment-interval-seconds", "1"]
        program, *rest = self._host.inside(sys.executable, *words)
        self.controller = await self._stack.python(*rest, interpreter=program, **self._environ)

    def processes(self) -> dict[str, int]:
        """The pids of those that run, by name."""
        found = {}
        for path in self._state.glob("dynamo/serve/*/*.process"):
            with suppress(OSError, ValueError, KeyError):
                record = json.loads(path.read_text())
                if Path(f"/proc/{record['pid']}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                    found[f"{record['name']} of the {self.kind}"] = record["pid"]
        return found

    def end(self) -> None:
        with suppress(ProcessLookupError):
            self.controller.signal(signal.SIGKILL)
        for pid in self.processes().values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Killer:
    """Kills one process every so many seconds, whatever became of the one before."""

    def __init__(self, sites: list[Site], seed: int, every: float) -> None:
        self.killed: list[Killed] = []
        self._sites = sites
        self._chance = random.Random(f"kills {seed}")
        self._every = every

    async def run(self) -> None:
        due = time.monotonic()
        while True:
            due = max(due + self._every, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
            site = self._chance.choice(self._sites)
            targets = {**site.processes(), site.kind: site.controller.child.pid}
            name = self._chance.choice(sorted(targets))
            self.killed.append(Killed(time.monotonic(), name, targets[name]))
            if name == site.kind:
                site.controller.signal(signal.SIGKILL)
                await site.controller.ended()
                await site.start()
            else:
                with suppress(ProcessLookupError):
                    os.kill(targets[name], signal.SIGKILL)


class Twice(Struct):
    """Tokens that more than one worker has computed."""

    computed: int = 0
    after_a_death: int = 0
    """The worker that had computed them was dead by then."""
    alive: list[str] = msgspec.field(default_factory=list)
    """It was not."""


def computed_twice(files: list[Path], killed: list[Killed]) -> Twice:
    died = {each.pid: each.at for each in killed}
    first: dict[tuple[str, int], tuple[int, float]] = {}
    twice = Twice()
    lines = sorted(
        (float(at), int(pid), request, int(place), int(count))
        for file in files
        for at, pid, request, place, count in (line.split() for line in file.read_text().splitlines())
    )
    for at, pid, request, place, count in lines:
        twice.computed += count
        for number in range(place, place + count):
            before = first.get((request, number))
            first[request, number] = (pid, at)
            if before is None:
                continue
            if died.get(before[0], float("inf")) <= at:
                twice.after_a_death += 1
            else:
                twice.alive.append(f"token {number} of {request}: {before} and {(pid, at)}")
    return twice


def test_tokens_that_are_computed_twice_are_found(tmp_path: Path) -> None:
    """Request a is continued by another worker, b again after its worker's death, and c beside one that lives."""
    lines = ("1 10 a 0 3", "3 11 a 3 2", "1 10 b 0 3", "3 11 b 0 2", "1 12 c 0 2", "3 11 c 1 2")
    (tmp_path / "counts").write_text("".join(f"{line}\n" for line in lines))
    twice = computed_twice([tmp_path / "counts"], [Killed(2.0, "worker", 10)])
    assert (twice.computed, twice.after_a_death, len(twice.alive)) == (14, 2, 1)
    assert twice.alive[0].startswith("token 1 of c")


@pytest.mark.parametrize("plane", ["tcp", "nats"])
@pytest.mark.chaos
async def test_frontends_workers_supervisor_and_planner_are_killed(tmp_path: Path, plane: str) -> None:
    if why := cannot_make_hosts():
        print(f"NOT RUN: kills over two hosts ({why})")
        pytest.skip(why)
    await disturb(tmp_path, plane, REQUESTS, EVERY)


@asynccontextmanager
async def two_sites(folder: Path, plane: str) -> AsyncIterator[list[Site]]:
    """A supervisor on one host and a planner on the other, each with two workers and two frontends."""
    with two_hosts() as (here, there), this_thread_on(here), services(folder, plane, here) as environ:
        async with Stack(folder, environ) as stack:
            sites = [
                Site(stack, folder / "here", here, "supervisor", [free_port(), free_port()], environ),
                Site(stack, folder / "there", there, "planner", [free_port(), free_port()], environ),
            ]
            try:
                for site in sites:
                    await site.start()
                    await site.controller.line(READY[site.kind])
                yield sites
            finally:
                for site in sites:
                    site.end()


@contextmanager
def services(folder: Path, plane: str, host: Host) -> Iterator[dict[str, str]]:
    with Etcd(folder / "etcd", free_port(), host.address) as etcd:
        environ = {"ETCD_ENDPOINTS": etcd.url, "DYN_PLANE_TOKEN": "of these hosts", "DYN_LOG": "info"}
        if plane == "tcp":
            yield environ
        else:
            with Nats(folder / "nats", free_port(), host.address) as nats:
                yield {**environ, "NATS_SERVER": nats.url, "DYN_REQUEST_PLANE": "nats"}


async def until_served(session: aiohttp.ClientSession, urls: list[str], workers: int) -> None:
    for url in urls:

        async def known(url: str = url) -> bool:
            with suppress(aiohttp.ClientError):
                async with session.get(f"{url}/health") as answer:
                    found = (await answer.json()).get("instances", ())
                    return sum(one["endpoint"] == "generate" for one in found) >= workers
            return False

        await until(known)


async def disturb(folder: Path, plane: str, requests: int, every: float) -> None:
    seed = seed_of_run(11)
    pool = [msgspec.structs.replace(each, body={**each.body, "stream": True}) for each in questions(seed, 48, "tiny")]
    async with two_sites(folder, plane) as sites, client_session() as session:
        urls = [url for site in sites for url in site.urls]
        await until_served(session, urls, 4)
        chance = random.Random(f"order {seed}")

        def client(question: Question) -> StreamClient:
            how = chance.choice(("post", "get"))
            return StreamClient(session, question.path, question.body, how=how)  # type: ignore[arg-type]

        undisturbed = [comparable(await client(each).whole(urls[:1])) for each in pool]
        drawn = iter([chance.randrange(len(pool)) for _ in range(requests)])
        starts = itertools.cycle(range(len(urls)))
        different: list[str] = []
        connections = answered = 0

        async def read() -> None:
            nonlocal connections, answered
            for number in drawn:
                asked, begin = client(pool[number]), next(starts)
                texts = await asked.whole([*urls[begin:], *urls[:begin]])
                connections += asked.connections - 1
                answered += 1
                if comparable(texts) != undisturbed[number]:
                    different.append(f"{pool[number]}: {asked.name} after {asked.connections} connections")

        killer = Killer(sites, seed, every)
        killing = asyncio.create_task(killer.run())
        begun = time.monotonic()
        try:
            await asyncio.gather(*(read() for _ in range(AT_ONCE)))
            assert not killing.done(), killing.exception()
        finally:
            killing.cancel()
            await asyncio.gather(killing, return_exceptions=True)
            seconds = time.monotonic() - begun
            kinds = Counter(each.name.partition(" of ")[0].partition("-")[0] for each in killer.killed)
            counts = f"{answered} of {requests} streams in {seconds:.0f} s, {connections} reconnections"
            kills = f"{len(killer.killed)} kills {dict(kinds)}"
            print(f"\nseed {seed}, {plane}: {counts}, {kills}, {len(different)} differ", flush=True)
        twice = computed_twice([site.counts for site in sites], killer.killed)
        print(f"{twice.computed} tokens, {twice.after_a_death} again after a death, {len(twice.alive)} beside a worker "
              "that had computed them and lived", flush=True)  # fmt: skip
        assert not different, different[:5]
        assert killer.killed
        assert not twice.alive, twice.alive[:5]
