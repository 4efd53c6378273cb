"""What `dynamo inspect` does to a frontend with 1,000 streams: how late its event loop is, with and without it.

    .venv/bin/python benchmarks/inspect_disturbance.py

The frontend runs with a timer that fires every millisecond and keeps how late it was. "Late" includes the work of the
streams themselves, so each kind of inspection is compared with times in which nobody inspects.
"""

from __future__ import annotations

import argparse
import asyncio
import atexit
import itertools
import json
import subprocess
import sys
import tempfile
import time
from array import array
from pathlib import Path
from typing import Any

import uvloop

from figures import percentile, table
from load import Reply, Users, requests
from processes import Stack, free_port
from prompts import MODEL, Prompts, make_model

EVERY_SECONDS = 0.001
KINDS: dict[str, list[str]] = {
    "nobody": [],
    "all tables, 10 rows each": ["{pid}"],
    "tasks": ["{pid}", "tasks"],
    "streams": ["{pid}", "streams"],
    "bookings, links, queues": ["{pid}", "bookings", "links", "queues"],
    "--stacks": ["{pid}", "--stacks"],
    "--profile 1": ["{pid}", "--profile", "1"],
    "--log ''": ["{pid}", "--log", ""],
    "--objects": ["{pid}", "--objects"],
}


def child(words: list[str], kept: str) -> None:
    """A frontend with the timer."""
    from dynamo.frontend import server
    from dynamo.frontend.__main__ import main

    times, late = array("d"), array("d")
    start = server.Server.start

    async def started(self: Any) -> None:
        await start(self)
        loop = asyncio.get_running_loop()
        due = loop.time()

        def tick() -> None:
            nonlocal due
            now = loop.time()
            times.append(time.monotonic())
            late.append(now - due)
            due = now + EVERY_SECONDS
            loop.call_at(due, tick)

        tick()

    server.Server.start = started  # type: ignore[method-assign]
    atexit.register(lambda: Path(kept).write_bytes(json.dumps([list(times), list(late)]).encode()))
    main(words)


class Streams:
    """Users whose answers never end while the measurement lasts."""

    def __init__(self, url: str, count: int) -> None:
        self._users = Users(url, quickack=False)
        self._count = count
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Streams:
        await self._users.open(self._count)
        row = itertools.cycle(requests(Prompts(1), self._count, 16, 4000, stream=True))
        replies: list[Reply] = []
        self._tasks = [
            asyncio.create_task(self._users._user(number, row, True, float("inf"), replies))
            for number in range(self._count)
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._users.close()


async def measure(folder: Path, options: argparse.Namespace) -> None:
    kept = folder / "late.json"
    windows: dict[str, list[tuple[float, float]]] = {name: [] for name in KINDS}
    with Stack(folder / "stack") as stack:
        port = free_port()
        stack.url = f"http://127.0.0.1:{port}"
        flags = ["--http-host", "127.0.0.1", "--http-port", str(port), "--discovery-backend", "file"]
        frontend = stack.start("frontend", __file__, "--child", str(kept), *flags)
        # Many workers, so that not all streams have their next token at the same moment.
        speed = [f"--num-workers={options.workers}", f"--decode-speedup-ratio={options.speed}", "--max-num-seqs=256"]
        stack.mocker(make_model(folder / "model", max_position_embeddings=1 << 16), MODEL, *speed)
        stack.until("/v1/models", f'"{MODEL}"'.encode(), seconds=120)
        async with Streams(stack.url, options.streams):
            await asyncio.sleep(options.settle)
            before, at = frontend.cpu(), time.monotonic()
            for _ in range(options.rounds):
                for name, words in KINDS.items():
                    windows[name].append(await inspected(frontend.pid, words, stack.environ))
            used = (frontend.cpu() - before) / (time.monotonic() - at)
        stack.stop()
    times, late = json.loads(kept.read_bytes())
    print(f"{options.streams} streams at {options.workers} workers, the frontend at {100 * used:.0f} % of a core\n")
    print(table(["inspected", "looks", "p50", "p99", "p99.9", "longest (ms)"], list(rows(windows, times, late))))


async def inspected(pid: int, words: list[str], environ: dict[str, str]) -> tuple[float, float]:
    if not words:
        began = time.monotonic()
        await asyncio.sleep(1.0)
        return began, time.monotonic()
    program = [
        sys.executable,
        "-c",
        "import os, sys; from dynamo.run.inspect import inspect; sys.exit(inspect(sys.argv[1:], os.environ))",
    ]
    # The client's own start is not part of what is measured: it asks when it is told to.
    asking = await asyncio.create_subprocess_exec(
        *program, *(word.format(pid=pid) for word in words), env=environ, stdout=subprocess.DEVNULL
    )
    began = time.monotonic()
    if await asking.wait():
        raise SystemExit(f"dynamo inspect {words} failed")
    return began, time.monotonic()


def rows(windows: dict[str, list[tuple[float, float]]], times: list[float], late: list[float]) -> Any:
    for name, spans in windows.items():
        within = sorted(
            1000 * seconds
            for at, seconds in zip(times, late, strict=True)
            if any(begin <= at <= end for begin, end in spans)
        )
        shares = [percentile(within, share) for share in (50, 99, 99.9)]
        yield [name, str(len(spans)), *(f"{each:.2f}" for each in (*shares, within[-1]))]


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[3:], sys.argv[2])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=32)
    parser.add_argument("--speed", type=float, default=0.1, help="of the mockers' decoding")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--settle", type=float, default=5.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        uvloop.run(measure(Path(folder), options))


if __name__ == "__main__":
    main()
