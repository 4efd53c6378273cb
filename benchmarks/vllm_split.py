"""Two prefill and two decode workers of vLLM with NIXL: are answers the same, what stays behind, does anyone notice?

    PYTHON benchmarks/vllm_split.py identical [--networks file+tcp,etcd+tcp,file+nats,etcd+nats]
    PYTHON benchmarks/vllm_split.py cancel
    PYTHON benchmarks/vllm_split.py break       workers are killed, stopped and drained under load; or one of these:
                                                break:decode-killed, :prefill-killed, :prefill-stopped, :engine-stopped,
                                                :drained
    PYTHON benchmarks/vllm_split.py moments     prefill workers die before, during and after their answer

PYTHON is that of `tests/engines/install`; every vLLM needs 2 GB and a minute to start. Several shows may be named, for
one set of workers, each with the number of its requests: `cancel=200 break=60`. NIXL takes TCP
between the workers, as between machines; --ucx-tls chooses otherwise.
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
STOPPED = 10.0
"""Seconds for which a worker is stopped, at least."""


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

    async def clear(self) -> int:
        """How many workers had no block in use, and forgot what was cached."""
        async with self._http.post(f"{self.whole.url}/clear_kv_blocks") as answer:
            answer.raise_for_status()
            return len((await answer.json())["cleared_workers"])

    async def until_free(self) -> float:
        """Seconds until no block is in use and no record open; what was not fetched is freed after vLLM's lease."""
        began = time.monotonic()
        while True:
            cleared = await self.clear()
            records = [await self.total(each, "dynamo_component_handoff_open_records") for each in self.of("prefill")]
            if cleared == len(self.workers) and not any(records):
                return time.monotonic() - began
            if time.monotonic() - began > 10 * LEASE:
                raise SystemExit(f"blocks stay behind: {cleared} workers cleared, {records} records")
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


async def disturb(fleet: Fleet, count: int, only: str = "") -> str:
    """Each thing that can happen to a worker happens once under load, at any moment of the requests that run then."""
    (first, second), (decode, _) = fleet.of("prefill"), fleet.of("decode")
    part = max(4, count // 12)

    async def show(name: str, what: Any) -> None:
        if only not in ("", name):
            return
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
        await asyncio.sleep(STOPPED)
        await load.more(part)
        first.signal(signal.SIGCONT)

    async def cut(load: Load) -> None:
        """The engine alone stops: the worker still answers, and transfers from its engine hang."""
        second.signal_engine(signal.SIGSTOP)
        await asyncio.sleep(STOPPED)
        await load.more(part)
        second.signal_engine(signal.SIGCONT)

    async def drained(load: Load) -> None:
        second.signal(signal.SIGTERM, engine=False)
        await second.ended()
        await second.start()

    await show("prefill-killed", lambda load: killed(first, load))
    await show("decode-killed", lambda load: killed(decode, load))
    await show("prefill-stopped", stopped)
    await show("engine-stopped", cut)
    await show("drained", drained)
    return f"nothing held {await fleet.until_free():.0f} s after the last one"


async def moments(fleet: Fleet, count: int) -> str:
    """Prefill workers die before they take a prompt, while they compute it, and when it waits to be fetched."""
    (first, second), decoding = fleet.of("prefill"), fleet.of("decode")
    said = []

    async def asks(moment: str, until: Any, kill: Any) -> None:
        began = time.monotonic()
        texts = [f"{moment} {n} " + prompts(1, 200, seed=n)[0] + " and more" * 40 for n in range(count)]
        answers = [asyncio.create_task(fleet.split.ask("m", text, 12)) for text in texts]
        await until()
        kill()
        whole = await asyncio.gather(*answers)
        complete = sum(each["usage"]["completion_tokens"] == 12 for each in whole)
        reasons = dict(Counter(map(prefilled, whole)))
        said.append(f"{moment}: {complete} of {count} complete after {time.monotonic() - began:.0f} s, {reasons}")

    async def reaches(name: str, wanted: float, *workers: Worker) -> None:
        """Not for longer than the frontend waits for a prefill worker."""
        for _ in range(100):
            if sum([await fleet.total(each, name) for each in workers]) >= wanted:
                return
            await asyncio.sleep(0.05)

    def end(*workers: Worker) -> None:
        for worker in workers:
            worker.signal(signal.SIGKILL)

    def end_first() -> None:
        end(first)
        second.signal(signal.SIGCONT)

    for worker in (first, second):
        worker.signal(signal.SIGSTOP)
    await asks("before", lambda: asyncio.sleep(1), end_first)
    second.signal_engine(signal.SIGSTOP)
    await asks("during", lambda: reaches("dynamo_component_inflight_requests", 1, second), lambda: end(second))
    await asyncio.gather(first.start(), second.start())
    await fleet.split.until_served("m")
    computed = "vllm:request_success_total"
    before = sum([await fleet.total(each, computed) for each in (first, second)])
    for worker in decoding:
        worker.signal_engine(signal.SIGSTOP)

    def end_both() -> None:
        end(first, second)
        for worker in decoding:
            worker.signal_engine(signal.SIGCONT)

    await asks("after", lambda: reaches(computed, before + count, first, second), end_both)
    await asyncio.gather(first.start(), second.start())
    said.append(f"nothing held {await fleet.until_free():.0f} s after the last one")
    return "; ".join(said)


SHOWS: dict[str, tuple[Any, int]] = {
    "identical": (identical, 100), "cancel": (cancel, 1000), "break": (disturb, 200), "moments": (moments, 4),
}  # fmt: skip


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
        for asked_for in names:
            name, _, wanted = asked_for.partition("=")
            name, *only = name.split(":")
            show, count = SHOWS[name]
            began = time.monotonic()
            found = await show(fleet, int(wanted or count), *only)
            print(f"{network.name}, {name}: {found}; took {time.monotonic() - began:.0f} s", flush=True)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shows", nargs="+", metavar="SHOW[=REQUESTS]", help=f"of {', '.join(SHOWS)}")
    parser.add_argument("--networks", default="file+tcp", help="how processes reach each other, one run each")
    parser.add_argument("--ucx-tls", default="tcp,self")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, networks(Path(folder), *options.networks.split(",")) as found:
        for network in found:
            await run(options.shows, network, Path(folder), options)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
