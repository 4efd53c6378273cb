"""What `dynamo inspect` does to a frontend with 1,000 streams: how late its event loop is, with and without it.

    .venv/bin/python benchmarks/inspect_disturbance.py

The frontend runs with a timer that fires every millisecond and keeps how late it was. "Late" includes the work of the
streams themselves, so each look is compared with the time of the same length before it, in which nobody looks. A timer
is also late when other processes use the processors: therefore the time that the frontend itself computed while the
timer waited stands beside it. The client is one process that has started before; it asks when it is told to.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop
from msgspec import Struct

from figures import table
from load import Reply, Users, requests
from processes import Stack, free_port
from prompts import MODEL, Prompts, make_model

EVERY_SECONDS = 0.001
PAUSE_SECONDS = 0.1
"""After a look, before the next time in which nobody looks."""
LEAST_SECONDS, MOST_SECONDS = 0.05, 1.0
"""Seconds of such a time. The loop is later in longer ones: short looks get more, and long ones count in pieces."""
KINDS: dict[str, list[str]] = {
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

    times, late, own = array("d"), array("d"), array("d")
    start = server.Server.start

    def write() -> None:
        part = Path(kept).with_suffix(".part")
        part.write_bytes(json.dumps([list(times), list(late), list(own)]).encode())
        part.rename(kept)

    async def started(self: Any) -> None:
        await start(self)
        loop = asyncio.get_running_loop()
        due = time.monotonic()  # uvloop's own clock counts whole milliseconds
        computed = time.process_time()

        def tick() -> None:
            nonlocal due, computed
            now, cpu = time.monotonic(), time.process_time()
            times.append(now)
            late.append(now - due)
            own.append(min(now - due, cpu - computed))
            due, computed = now + EVERY_SECONDS, cpu
            loop.call_later(EVERY_SECONDS, tick)

        loop.add_signal_handler(signal.SIGUSR1, write)
        tick()

    server.Server.start = started  # type: ignore[method-assign]
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


class Look(Struct):
    """One answer of `dynamo inspect`, from the question to its end."""

    begin: float
    end: float

    @property
    def piece(self) -> float:
        return min(MOST_SECONDS, max(LEAST_SECONDS, self.end - self.begin))

    @property
    def before(self) -> list[tuple[float, float]]:
        """A time of the same length in which nobody looked."""
        return [(self.begin - self.piece, self.begin)]

    @property
    def during(self) -> list[tuple[float, float]]:
        count = max(1, int((self.end - self.begin) / self.piece))
        return [(self.begin + at * self.piece, self.begin + (at + 1) * self.piece) for at in range(count)]


CLIENT = """
import json, os, sys
from dynamo.cli.inspect.command import inspect
for line in sys.stdin:
    print(inspect(json.loads(line), os.environ), file=sys.stderr, flush=True)
"""


class Client:
    """A `dynamo inspect` that has started and waits for its words."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, environ: dict[str, str]) -> Client:
        pipe = subprocess.PIPE
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable, "-c", CLIENT, env=environ, stdin=pipe, stdout=subprocess.DEVNULL, stderr=pipe
            )
        )

    async def look(self, words: list[str]) -> Look:
        assert self._process.stdin
        assert self._process.stderr
        began = time.monotonic()
        self._process.stdin.write(json.dumps(words).encode() + b"\n")
        answer = await self._process.stderr.readline()
        if answer.strip() != b"0":
            raise SystemExit(f"dynamo inspect {words} failed: {answer.decode()}")
        return Look(began, time.monotonic())

    async def close(self) -> None:
        self._process.kill()
        await self._process.wait()


async def measure(folder: Path, options: argparse.Namespace) -> None:
    kept = folder / "late.json"
    looks: dict[str, list[Look]] = {name: [] for name in KINDS}
    with Stack(folder / "stack") as stack:
        port = free_port()
        stack.url = f"http://127.0.0.1:{port}"
        flags = ["--http-host", "127.0.0.1", "--http-port", str(port), "--discovery-backend", "file"]
        frontend = stack.start("frontend", __file__, "--child", str(kept), *flags)
        # Many workers, so that not all streams have their next token at the same moment.
        speed = [f"--num-workers={options.workers}", f"--decode-speedup-ratio={options.speed}", "--max-num-seqs=256"]
        stack.mocker(make_model(folder / "model", max_position_embeddings=1 << 16), MODEL, *speed)
        stack.until("/v1/models", f'"{MODEL}"'.encode(), seconds=120)
        client = await Client.start(stack.environ)
        async with Streams(stack.url, options.streams):
            await client.look([str(frontend.pid)])
            await asyncio.sleep(options.settle)
            before, at = frontend.cpu(), time.monotonic()
            for turn in range(options.rounds):
                for name, words in KINDS.items():
                    if "--objects" in words and turn % 4:
                        continue  # it takes seconds
                    long = {"--profile", "--objects"} & set(words)
                    await asyncio.sleep(PAUSE_SECONDS + (MOST_SECONDS if long else 2 * LEAST_SECONDS))
                    looks[name].append(await client.look([word.format(pid=frontend.pid) for word in words]))
            used = (frontend.cpu() - before) / (time.monotonic() - at)
            frontend.process.send_signal(signal.SIGUSR1)
            while not kept.exists():  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        await client.close()
        times, late, own = json.loads(kept.read_bytes())
    print(f"{options.streams} streams at {options.workers} workers, the frontend at {100 * used:.0f} % of a core.")
    print("How late the timer was at most, in ms, in the time before / during a look:\n")
    head = ["inspected", "looks", "look (ms)", "late, median", "late, worst", "computing, median", "computing, worst"]
    print(table(head, list(rows(looks, times, late, own))))


def rows(looks: dict[str, list[Look]], times: list[float], *measured: list[float]) -> Iterator[list[str]]:
    for name, each in looks.items():
        row = [name, str(len(each)), f"{1000 * statistics.median(one.end - one.begin for one in each):.1f}"]
        for values in measured:
            before, during = (
                sorted(1000 * longest(times, values, span) for one in each for span in getattr(one, when))
                for when in ("before", "during")
            )
            row += [
                f"{statistics.median(before):.1f} / {statistics.median(during):.1f}",
                f"{before[-1]:.1f} / {during[-1]:.1f}",
            ]
        yield row


def longest(times: list[float], values: list[float], span: tuple[float, float]) -> float:
    begin, end = (bisect_left(times, edge) for edge in span)
    # The timer that is late at the end of the look fires after it.
    return max(values[begin : end + 1], default=0.0)


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[3:], sys.argv[2])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=32)
    parser.add_argument("--speed", type=float, default=0.1, help="of the mockers' decoding")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--settle", type=float, default=5.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        uvloop.run(measure(Path(folder), options))


if __name__ == "__main__":
    main()
