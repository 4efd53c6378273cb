"""What looking costs: the CPU of a frontend beside 256 mockers with 0, 1 and 5 viewers of the fleet, idle and loaded.

    .venv/bin/python benchmarks/fleet_view.py
    .venv/bin/python benchmarks/fleet_view.py --full

`--full` is the frontend's full load: answers of a few tokens from mockers that take no time, so that it gets as many
requests as it can take.

Rounds alternate, so that a change of the machine's speed meets all of them. The cost of viewers is what the frontend
counts itself (`dynamo_frontend_fleet_view_cpu_seconds_total`). Beside it stands all that the frontend computes per
request, viewers included, as the median of all rounds, and as a multiple of what it computes with none: that has the
noise of the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import aiohttp
import uvloop
from msgspec import Struct

from figures import table
from load import Reply, Users, requests
from networks import networks
from processes import Child, Stack, metric_total
from prompts import MODEL, Prompts, make_model

VIEWING = "dynamo_frontend_fleet_view_cpu_seconds_total"


class Window(Struct):
    """One measurement of one round."""

    seconds: float
    cpu: float
    tokens: int
    requests: int
    patches: float
    """Per second and viewer."""
    bytes: float
    """The same."""
    viewing: float
    """Processor seconds that the frontend itself counts for its viewers."""


class Viewers:
    """Clients that read the stream and count it."""

    def __init__(self, url: str, count: int, prefixes: bool) -> None:
        self._url = f"{url}/fleet/events{'?prefixes=true' if prefixes else ''}"
        self._count = count
        self._tasks: list[asyncio.Task[None]] = []
        self.patches = self.bytes = 0

    async def __aenter__(self) -> Viewers:
        self._tasks = [asyncio.create_task(self._read()) for _ in range(self._count)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _read(self) -> None:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), read_bufsize=1 << 24) as http,
            http.get(self._url) as answer,
        ):
            async for data in answer.content.iter_any():
                self.bytes += len(data)
                self.patches += data.count(b"event: patch")


class Tally(list[Reply]):
    """Counts replies instead of keeping them: at a thousand a second they would fill the memory."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = self.tokens = 0

    def append(self, reply: Reply) -> None:
        if reply.error:
            raise SystemExit(f"a request failed: {reply.error}")
        self.requests += 1
        self.tokens += reply.tokens


class Load:
    """Users that send one request after another; the replies so far can be counted at any time."""

    def __init__(self, url: str, users: int, options: argparse.Namespace) -> None:
        self._users = Users(url)
        self._count = users
        self._stream = options.stream
        row = requests(Prompts(1), 4000, options.prompt, options.output, stream=options.stream)
        self._requests = itertools.cycle(row)
        self.replies = Tally()
        self._running: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Load:
        await self._users.open(self._count)
        self._running = [
            asyncio.create_task(self._users._user(number, self._requests, self._stream, float("inf"), self.replies))
            for number in range(self._count)
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._users.close()

    def check(self) -> None:
        for task in self._running:
            if task.done():
                task.result()


async def window(frontend: Child, url: str, load: Load | None, viewers: int, options: argparse.Namespace) -> Window:
    async with Viewers(url, viewers, options.prefixes) as looking:
        await asyncio.sleep(options.settle)
        viewing = await asyncio.to_thread(metric_total, url, VIEWING)
        before = clocks(frontend, load, looking)
        await asyncio.sleep(options.seconds)
        after = clocks(frontend, load, looking)
        if load:
            load.check()
        seconds, cpu, tokens, asked, patches, bytes = (now - then for now, then in zip(after, before, strict=True))
        viewing = await asyncio.to_thread(metric_total, url, VIEWING) - viewing
        each = max(1, viewers) * seconds
        return Window(seconds, cpu, int(tokens), int(asked), patches / each, bytes / each, viewing)


def clocks(frontend: Child, load: Load | None, looking: Viewers) -> tuple[float, ...]:
    tokens, asked = (load.replies.tokens, load.replies.requests) if load else (0, 0)
    return time.monotonic(), frontend.cpu(), tokens, asked, looking.patches, looking.bytes


async def rounds(frontend: Child, url: str, load: Load | None, options: argparse.Namespace) -> dict[int, list[Window]]:
    found: dict[int, list[Window]] = {count: [] for count in options.viewers}
    for turn in range(options.rounds):
        # Each comes as often after each other one, as a window may suffer from the one before it.
        order = options.viewers if turn % 2 else options.viewers[::-1]
        for count in order:
            found[count].append(await window(frontend, url, load, count, options))
    return found


def rows(found: dict[int, list[Window]], loaded: bool) -> list[list[str]]:
    def mean(windows: list[Window], name: str) -> float:
        return statistics.fmean(getattr(one, name) / one.seconds for one in windows)

    def per_request(windows: list[Window]) -> list[float]:
        return [one.cpu / max(1, one.requests) for one in windows]

    alone = statistics.median(per_request(found[0])) if loaded and 0 in found else 0.0
    shown = []
    for count, windows in found.items():
        more = mean(windows, "viewing")
        costs = sorted(per_request(windows))
        cost = statistics.median(costs)
        shown.append(
            [
                str(count),
                f"{100 * mean(windows, 'cpu'):.1f} %",
                f"{mean(windows, 'requests'):,.0f}" if loaded else "–",
                f"{mean(windows, 'tokens'):,.0f}" if loaded else "–",
                f"{1e6 * cost:.0f} ({1e6 * costs[0]:.0f} to {1e6 * costs[-1]:.0f})" if loaded else "–",
                f"{cost / alone:.3f}" if alone else "–",
                f"{100 * more:.2f} %",
                f"{100 * more / count:.2f} %" if count else "–",
                f"{statistics.fmean(one.patches for one in windows):.2f}" if count else "–",
                f"{statistics.fmean(one.bytes for one in windows) / 1000:.1f}" if count else "–",
            ]
        )
    return shown


HEAD = [
    "viewers",
    "CPU of the frontend",
    "requests/s",
    "tokens/s",
    "CPU µs/request",
    "of that with none",
    "for all viewers",
    "for each",
    "patches/s",
    "kB/s",
]


async def measure(folder: Path, options: argparse.Namespace) -> None:
    with networks(folder, "etcd+tcp") as [network], Stack(folder / "stack") as stack:
        # Workers that find each other in a folder would read it again and again, all of them in one process.
        stack.environ.update(network.environ)
        frontend = stack.frontend("--router-mode", "kv", discovery=network.discovery)
        flags = [f"--num-workers={options.workers}", "--stagger-delay=0", f"--speedup-ratio={options.speedup}"]
        mocker = stack.mocker(make_model(folder / "model"), MODEL, *flags, discovery=network.discovery)
        stack.until("/v1/models", f'"{MODEL}"'.encode(), seconds=300)
        await until_ready(stack.url, options.workers)
        await asyncio.sleep(2)
        if not options.full:
            print(f"{options.workers} workers, idle:\n")
            print(table(HEAD, rows(await rounds(frontend, stack.url, None, options), False)))
        for users in options.users:
            async with Load(stack.url, users, options) as load:
                await asyncio.sleep(8)
                before = mocker.cpu(), time.process_time(), time.monotonic()
                found = await rounds(frontend, stack.url, load, options)
                worker, client, seconds = (
                    mocker.cpu() - before[0],
                    time.process_time() - before[1],
                    time.monotonic() - before[2],
                )
                print(f"\n{options.workers} workers, {users} users without a pause; their processes took ", end="")
                print(f"{100 * worker / seconds:.0f} % and {100 * client / seconds:.0f} % of a core:\n")
                print(table(HEAD, rows(found, True)))


async def until_ready(url: str, workers: int) -> None:
    async with aiohttp.ClientSession() as http:
        while True:
            with suppress(aiohttp.ClientError):
                async with http.get(f"{url}/health") as answer:
                    if len((await answer.json()).get("instances", [])) >= workers:
                        return
            await asyncio.sleep(0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=256)
    parser.add_argument("--viewers", type=int, nargs="+", default=[0, 1, 5])
    parser.add_argument("--users", type=int, nargs="+", default=[256])
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--output", type=int, default=64)
    parser.add_argument("--speedup", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=6.0, help="of one measurement")
    parser.add_argument("--settle", type=float, default=1.5, help="after viewers have come or gone")
    parser.add_argument("--prefixes", action="store_true", help="viewers ask for the cached prefixes too")
    parser.add_argument("--full", action="store_true", help="as many requests as the frontend takes")
    options = parser.parse_args()
    options.stream = not options.full
    if options.full:
        options.rounds, options.seconds = 2 * options.rounds, 4.0
        options.users, options.prompt, options.output, options.speedup = [96], 16, 2, 0.0
    with tempfile.TemporaryDirectory() as folder:
        uvloop.run(measure(Path(folder), options))


if __name__ == "__main__":
    main()
