"""What looking costs: the CPU of a frontend beside 256 mockers with 0, 1 and 5 viewers of the fleet, idle and loaded.

    .venv/bin/python benchmarks/fleet_view.py

Rounds alternate, so that a change of the machine's speed meets all of them. Under load the cost of a viewer is the
growth of CPU per token, times the tokens: the frontend is saturated, so its CPU alone would not grow.
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
from processes import Child, Stack
from prompts import MODEL, Prompts, make_model


class Window(Struct):
    """One measurement of one round."""

    seconds: float
    cpu: float
    tokens: int
    patches: float
    """Per second and viewer."""
    bytes: float
    """The same."""


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


class Load:
    """Users that send one request after another; the replies so far can be counted at any time."""

    def __init__(self, url: str, users: int, options: argparse.Namespace) -> None:
        self._users = Users(url)
        self._count = users
        row = requests(Prompts(1), 4000, options.prompt, options.output, stream=True)
        self._requests = itertools.cycle(row)
        self._replies: list[Reply] = []
        self._running: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Load:
        await self._users.open(self._count)
        self._running = [
            asyncio.create_task(self._users._user(number, self._requests, True, float("inf"), self._replies))
            for number in range(self._count)
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._users.close()

    def tokens(self) -> int:
        if failed := next((reply.error for reply in self._replies if reply.error), None):
            raise SystemExit(f"a request failed: {failed}")
        return sum(reply.tokens for reply in self._replies)


async def window(frontend: Child, url: str, load: Load | None, viewers: int, options: argparse.Namespace) -> Window:
    async with Viewers(url, viewers, options.prefixes) as looking:
        await asyncio.sleep(options.settle)
        before = time.monotonic(), frontend.cpu(), load.tokens() if load else 0, looking.patches, looking.bytes
        await asyncio.sleep(options.seconds)
        after = time.monotonic(), frontend.cpu(), load.tokens() if load else 0, looking.patches, looking.bytes
        seconds, cpu, tokens, patches, bytes = (now - then for now, then in zip(after, before, strict=True))
        each = max(1, viewers) * seconds
        return Window(seconds, cpu, int(tokens), patches / each, bytes / each)


async def rounds(frontend: Child, url: str, load: Load | None, options: argparse.Namespace) -> dict[int, list[Window]]:
    found: dict[int, list[Window]] = {count: [] for count in options.viewers}
    for _ in range(options.rounds):
        for count in options.viewers:
            found[count].append(await window(frontend, url, load, count, options))
    return found


def rows(found: dict[int, list[Window]], loaded: bool) -> list[list[str]]:
    def mean(windows: list[Window], name: str) -> float:
        return statistics.fmean(getattr(one, name) / one.seconds for one in windows)

    def per_token(windows: list[Window]) -> float:
        return sum(one.cpu for one in windows) / max(1, sum(one.tokens for one in windows))

    alone = found[0]
    shown = []
    for count, windows in found.items():
        if loaded:
            tokens = mean(windows, "tokens")
            more = (per_token(windows) - per_token(alone)) * tokens
        else:
            tokens, more = 0.0, mean(windows, "cpu") - mean(alone, "cpu")
        shown.append(
            [
                str(count),
                f"{100 * mean(windows, 'cpu'):.1f} %",
                f"{tokens:,.0f}" if loaded else "–",
                f"{1e6 * per_token(windows):.2f}" if loaded else "–",
                f"{100 * more:.2f} %" if count else "–",
                f"{100 * more / count:.2f} %" if count else "–",
                f"{statistics.fmean(one.patches for one in windows):.2f}" if count else "–",
                f"{statistics.fmean(one.bytes for one in windows) / 1000:.1f}" if count else "–",
            ]
        )
    return shown


HEAD = [
    "viewers",
    "CPU of the frontend",
    "tokens/s",
    "CPU µs/token",
    "for all viewers",
    "for each",
    "patches/s",
    "kB/s",
]


async def measure(folder: Path, options: argparse.Namespace) -> None:
    with Stack(folder / "stack") as stack:
        frontend = stack.frontend("--router-mode", "kv")
        flags = [f"--num-workers={options.workers}", "--stagger-delay=0", f"--speedup-ratio={options.speedup}"]
        stack.mocker(make_model(folder / "model"), MODEL, *flags)
        stack.until("/v1/models", f'"{MODEL}"'.encode(), seconds=300)
        await until_ready(stack.url, options.workers)
        await asyncio.sleep(2)
        print(f"{options.workers} workers, idle:\n")
        print(table(HEAD, rows(await rounds(frontend, stack.url, None, options), False)))
        for users in options.users:
            async with Load(stack.url, users, options) as load:
                await asyncio.sleep(3)
                print(f"\n{options.workers} workers, {users} users without a pause:\n")
                print(table(HEAD, rows(await rounds(frontend, stack.url, load, options), True)))


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
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        uvloop.run(measure(Path(folder), options))


if __name__ == "__main__":
    main()
