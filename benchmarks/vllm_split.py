"""Two prefill and two decode workers of vLLM with NIXL: are answers the same, what stays behind, does anyone notice?

    PYTHON benchmarks/vllm_split.py identical [--requests 100] [--networks file+tcp,etcd+tcp,file+nats,etcd+nats]
    PYTHON benchmarks/vllm_split.py cancel [--requests 1000]
    PYTHON benchmarks/vllm_split.py break [--requests 200]      workers are killed, stopped and drained under load

PYTHON is that of `tests/engines/install`; every vLLM needs 2 GB and a minute to start. Several shows may be named, for
one set of workers. NIXL takes TCP between the workers, as between machines; --ucx-tls chooses otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp

from disaggregation import ALWAYS, Clients, Processes, gathered, prefilled, prompts
from networks import Network, networks
from processes import free_port

FLAGS = ("--max-model-len", "1024", "--kv-cache-memory-bytes", "64M", "--max-num-seqs", "16")
ROLES = ("prefill", "prefill", "decode", "decode")
LEASE = 30.0


class Worker:
    """One vLLM; it may be started again under its name."""

    def __init__(self, processes: Processes, role: str, environ: dict[str, str]) -> None:
        self.role = role
        self.status = ""
        self._processes = processes
        self._environ = environ
        self._child: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        port = str(free_port())
        self.status = f"http://127.0.0.1:{port}"
        words = ("dynamo.vllm", "tiny", "--model-name", "m", *FLAGS, "--disaggregation-mode", self.role)
        self._child, _ = await self._processes.start(*words, until="worker for", DYN_SYSTEM_PORT=port, **self._environ)

    def signal(self, number: int, *, engine: bool = True) -> None:
        """To the worker and the processes of its engine, or to the worker alone."""
        assert self._child
        for pid in [*(_below(self._child.pid) if engine else []), self._child.pid]:
            os.kill(pid, number)

    def signal_engine(self, number: int) -> None:
        assert self._child
        for pid in _below(self._child.pid):
            os.kill(pid, number)

    async def ended(self) -> None:
        assert self._child
        await self._child.wait()


def _below(pid: int) -> list[int]:
    """The processes that this one started, and those that they did."""
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, file.read_text().split()):
            found += [child, *_below(child)]
    return found


class Fleet:
    def __init__(self, processes: Processes, http: aiohttp.ClientSession, environ: dict[str, str]) -> None:
        self.workers = [Worker(processes, role, environ) for role in ROLES]
        self._processes = processes
        self._http = http

    async def start(self) -> None:
        await asyncio.gather(*(worker.start() for worker in self.workers))
        never = ("--router-conditional-disagg-config", '{"policy": "never"}')
        many = ("--migration-limit", "10")
        self.split = Clients(await self._processes.frontend(*ALWAYS, *many), self._http)
        self.whole = Clients(await self._processes.frontend(*never, *many), self._http)
        for clients in (self.split, self.whole):
            await clients.until_served("m")

    def of(self, role: str) -> list[Worker]:
        return [worker for worker in self.workers if worker.role == role]

    async def total(self, worker: Worker, name: str) -> float:
        return sum(await self.split.metrics(worker.status, f"^{name}"))

    async def clear(self) -> None:
        async with self._http.post(f"{self.whole.url}/clear_kv_blocks") as answer:
            answer.raise_for_status()

    async def until_free(self) -> float:
        """Seconds until nothing is held; vLLM frees what was not fetched with a step after its lease."""
        began = time.monotonic()
        while True:
            # Each worker makes a step.
            await self.clear()
            held = [await self.total(worker, "vllm:kv_cache_usage_perc") for worker in self.workers]
            records = [await self.total(each, "dynamo_component_handoff_open_records") for each in self.of("prefill")]
            if not any(held) and not any(records):
                return time.monotonic() - began
            if time.monotonic() - began > 10 * LEASE:
                raise SystemExit(f"blocks stay behind: {held} of each cache, {records} records")
            await asyncio.sleep(1)


def asked(count: int) -> list[tuple[str, int]]:
    """Prompts of 3 to 470 tokens, and lengths of answers."""
    return [(text, random.Random(n).choice((4, 12, 24))) for n, text in enumerate(prompts(count, 200, seed=9))]


async def identical(fleet: Fleet, count: int) -> str:
    """One at a time: in batches of other sizes vLLM rounds differently."""
    whole = [await fleet.whole.ask("m", text, tokens) for text, tokens in asked(count)]
    await fleet.clear()
    split = [await fleet.split.ask("m", text, tokens) for text, tokens in asked(count)]
    same = sum(a["choices"][0]["text"] == b["choices"][0]["text"] for a, b in zip(whole, split, strict=True))
    moved = [await fleet.total(each, "vllm:nixl_xfer_time_seconds_count") for each in fleet.of("decode")]
    reasons = dict(Counter(map(prefilled, split)))
    return f"{same} of {count} identical; {reasons}; prompts fetched by each decode worker: {moved}"


async def cancel(fleet: Fleet, count: int) -> str:
    chance = random.Random(3)

    async def leaves(text: str, tokens: int) -> str:
        try:
            async with asyncio.timeout(chance.uniform(0, 1.5)):
                await fleet.split.ask("m", text, 2 * tokens)
            return "answered"
        except TimeoutError:
            return "left"

    outcomes = Counter(await gathered(8, [leaves(text, tokens) for text, tokens in asked(count)]))
    seconds = await fleet.until_free()
    expired = [await fleet.total(each, "vllm:nixl_num_kv_expired_reqs_total") for each in fleet.of("prefill")]
    after = await fleet.split.ask("m", "after all " * 40, 8)
    freed = f"nothing held {seconds:.0f} s after the last one left; freed by the lease: {sum(expired):.0f}"
    return f"{dict(outcomes)}; {freed}; then: {prefilled(after)}"


class Load:
    """Clients that ask until they are stopped; every answer must be complete."""

    def __init__(self, fleet: Fleet, at_once: int) -> None:
        self.answers: Counter[str] = Counter()
        self.longest = 0.0
        self._fleet = fleet
        self._more = True
        self._numbers = iter(range(10**9))
        self._tasks = [asyncio.create_task(self._client()) for _ in range(at_once)]

    async def _client(self) -> None:
        while self._more:
            number = next(self._numbers)
            text = f"{number} " + prompts(1, 200, seed=number)[0]
            began = time.monotonic()
            answer = await self._fleet.split.ask("m", text, 12)
            self.longest = max(self.longest, time.monotonic() - began)
            if answer["usage"]["completion_tokens"] != 12:
                raise SystemExit(f"an answer is not complete: {answer}")
            self.answers[prefilled(answer)] += 1

    async def more(self, count: int) -> None:
        wanted = self.answers.total() + count
        while self.answers.total() < wanted:
            for task in self._tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.05)

    async def stop(self) -> None:
        self._more = False
        await asyncio.gather(*self._tasks)


async def disturb(fleet: Fleet, count: int) -> str:
    """Each thing that can happen to a worker happens once under load, at any moment of the requests that run then."""
    (first, second), (decode, _) = fleet.of("prefill"), fleet.of("decode")
    part = max(4, count // 12)

    async def show(name: str, what: Any) -> None:
        load = Load(fleet, 4)
        await load.more(part)
        load.longest = 0.0
        await what(load)
        await load.more(part)
        await load.stop()
        complete = f"{load.answers.total()} complete, the longest took {load.longest:.1f} s"
        print(f"{name}: {complete}; {dict(load.answers)}", flush=True)

    async def killed(worker: Worker, load: Load) -> None:
        worker.signal(signal.SIGKILL, engine=False)
        await worker.ended()
        await load.more(part)
        await worker.start()

    async def stopped(load: Load) -> None:
        first.signal(signal.SIGSTOP)
        await load.more(part)
        first.signal(signal.SIGCONT)

    async def cut(load: Load) -> None:
        """The engine alone stops: the worker still answers, and transfers from its engine hang."""
        second.signal_engine(signal.SIGSTOP)
        await load.more(part)
        second.signal_engine(signal.SIGCONT)

    async def drained(load: Load) -> None:
        second.signal(signal.SIGTERM, engine=False)
        await second.ended()
        await second.start()

    await show("prefill worker killed", lambda load: killed(first, load))
    await show("decode worker killed", lambda load: killed(decode, load))
    await show("prefill worker stopped", stopped)
    await show("prefill engine stopped", cut)
    await show("prefill worker drained", drained)
    return f"nothing held {await fleet.until_free():.0f} s after the last one"


SHOWS = {"identical": (identical, 100), "cancel": (cancel, 1000), "break": (disturb, 200)}


async def run(names: list[str], network: Network, folder: Path, options: argparse.Namespace) -> None:
    async with AsyncExitStack() as stack:
        environ = {"OMP_NUM_THREADS": "1", "UCX_TLS": options.ucx_tls, **network.environ}
        processes = Processes(folder / network.name, **environ)
        stack.push_async_callback(processes.close)
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        fleet = Fleet(processes, http, {})
        began = time.monotonic()
        await fleet.start()
        print(f"{network.name}: ready after {time.monotonic() - began:.0f} s", flush=True)
        for name in names:
            show, count = SHOWS[name]
            began = time.monotonic()
            found = await show(fleet, options.requests or count)
            print(f"{network.name}, {name}: {found}; took {time.monotonic() - began:.0f} s", flush=True)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shows", nargs="+", choices=SHOWS)
    parser.add_argument("--requests", type=int)
    parser.add_argument("--networks", default="file+tcp", help="how processes reach each other, one run each")
    parser.add_argument("--ucx-tls", default="tcp,self")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, networks(Path(folder), *options.networks.split(",")) as found:
        for network in found:
            await run(options.shows, network, Path(folder), options)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
