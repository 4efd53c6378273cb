"""10,000 streams at once on one frontend process, and how a very slow reader or 500 idle connections affect others."""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop

from figures import percentile, short, table
from load import Reply, Users, body, http_request, requests
from processes import Stack
from prompts import MODEL, Prompts, make_model


class Driver:
    """A process that runs a share of the clients."""

    def __init__(self, stack: Stack, clients: int, output: int, number: int) -> None:
        self._results = stack.folder / f"client-{number}.json"
        args = [f"--url={stack.url}", f"--concurrency={clients}", f"--requests={clients}", f"--seed={number}"]
        args += ["--prompt=16", f"--output={output}", f"--json={self._results}", "--hold"]
        load = str(Path(__file__).with_name("load.py"))
        self._process = subprocess.Popen(
            [sys.executable, load, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def wait_until_connected(self) -> None:
        assert self._process.stdout
        if self._process.stdout.readline() != "ready\n":
            raise SystemExit("a client process did not start")

    def go(self) -> None:
        assert self._process.stdin
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def result(self) -> dict[str, Any]:
        self._process.communicate()
        results: dict[str, Any] = json.loads(self._results.read_bytes())
        return results


def most_at_once(spans: list[tuple[float, float]]) -> int:
    """The largest number of spans that overlap."""
    now = most = 0
    for _, step in sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans]):
        now += step
        most = max(most, now)
    return most


def ten_thousand(folder: Path, model: Path, options: argparse.Namespace) -> str:
    """All connections first, then all requests in one burst."""
    streams, output = options.streams, options.output
    with Stack(folder / "many") as stack:
        frontend = stack.frontend()
        # Every stream must fit into each step: otherwise the worker's queue would be measured.
        limits = [f"--max-num-seqs={streams}", f"--max-num-batched-tokens={4 * streams}"]
        limits.append(f"--num-gpu-blocks-override={16 * streams}")
        # A step takes about 0.3 s, as is real for this batch size: a faster one would pile tokens up.
        worker = stack.mocker(model, MODEL, "--speedup-ratio=1", "--decode-speedup-ratio=0.03", *limits)
        stack.until("/v1/models", f'"{MODEL}"'.encode())
        start = frontend.rss() / 1e6
        drivers = [Driver(stack, streams // options.clients, output, number) for number in range(options.clients)]
        for driver in drivers:
            driver.wait_until_connected()
        connected = highest = frontend.rss() / 1e6
        cpu, worker_cpu, began = frontend.cpu(), worker.cpu(), time.monotonic()
        for driver in drivers:
            driver.go()
        while any(driver.running for driver in drivers):
            highest = max(highest, frontend.rss() / 1e6)
            time.sleep(0.1)
        results = [driver.result() for driver in drivers]
        wall = max(end for one in results for _, _, end in one["times"]) - began
        used, worker_used = frontend.cpu() - cpu, worker.cpu() - worker_cpu
    times = [tuple(span) for one in results for span in one["times"]]
    tokens = sum(one["tokens"] for one in results)
    errors = [error for one in results for error in one["errors"]]
    ttft = [first - sent for sent, first, _ in times]
    gaps = [gap for one in results for gap in one["gaps"]]
    rows = [
        ["streams asked for / answered", f"{streams} / {len(times) - len(errors)}"],
        ["errors", f"{len(errors)} {errors[0] if errors else ''}".strip()],
        ["open at once", str(most_at_once([(sent, end) for sent, _, end in times]))],
        ["between first and last token at once", str(most_at_once([(first, end) for _, first, end in times]))],
        ["seconds, tokens/s", f"{wall:.1f}, {tokens / wall:.0f}"],
        ["frontend CPU s, µs/token", f"{used:.1f}, {1e6 * used / tokens:.1f}"],
        ["worker CPU s, µs/token", f"{worker_used:.1f}, {1e6 * worker_used / tokens:.1f}"],
        ["events/token", f"{sum(one['events'] for one in results) / tokens:.2f}"],
        ["TTFT p50 / p99 s", f"{percentile(ttft, 50):.2f} / {percentile(ttft, 99):.2f}"],
        ["ITL p50 / p99 s", f"{percentile(gaps, 50):.3f} / {percentile(gaps, 99):.3f}"],
        ["frontend RSS MB: start / connected / highest", f"{start:.0f} / {connected:.0f} / {highest:.0f}"],
        ["RSS kB per connection", f"{1e3 * (connected - start) / streams:.1f}"],
        ["RSS kB per stream, its connection included", f"{1e3 * (highest - start) / streams:.1f}"],
        ["client CPU s (all processes)", f"{sum(one['cpu'] for one in results):.1f}"],
    ]  # fmt: skip
    return table([f"{streams} streams", "figure"], rows)


async def pace(url: str, seconds: float, seed: int) -> list[Reply]:
    users = Users(url, quickack=False)
    await users.open(64)
    row = requests(Prompts(seed), 2000, 64, 256, stream=True)
    try:
        return await users.run(row, stream=True, until=time.monotonic() + seconds)
    finally:
        users.close()


@contextmanager
def no_neighbour(url: str) -> Iterator[None]:
    yield


@contextmanager
def slow_reader(url: str) -> Iterator[None]:
    """One client with a long answer and a small window that reads one byte per second."""
    child = subprocess.Popen([sys.executable, __file__, "--read-slowly", url])
    try:
        # Its answer must be running before the others are measured.
        time.sleep(1)
        yield
    finally:
        child.kill()
        child.wait()


@contextmanager
def idle_connections(url: str, count: int = 500) -> Iterator[None]:
    host, _, port = url.removeprefix("http://").rpartition(":")
    sockets = [socket.create_connection((host, int(port))) for _ in range(count)]
    try:
        yield
    finally:
        for one in sockets:
            one.close()


def read_slowly(url: str) -> None:
    host, _, port = url.removeprefix("http://").rpartition(":")
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect((host, int(port)))
    client.sendall(http_request(body("hello", 30_000, stream=True)))
    while client.recv(1):
        time.sleep(1)


def neighbours(folder: Path, model: Path, options: argparse.Namespace) -> str:
    """64 paced streams, in turn alone and with each neighbour."""
    kinds = {"alone": no_neighbour, "a client reading 1 byte/s": slow_reader, "500 idle connections": idle_connections}
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in kinds}
    with Stack(folder / "neighbours") as stack:
        frontend = stack.frontend()
        stack.mocker(model, MODEL, "--speedup-ratio=1")
        stack.until("/v1/models", f'"{MODEL}"'.encode())
        uvloop.run(pace(stack.url, 1, 0))
        for number in range(options.rounds):
            for name, neighbour in kinds.items():
                with neighbour(stack.url):
                    replies = uvloop.run(pace(stack.url, options.seconds, number + 1))
                    rss = frontend.rss() / 1e6
                gaps = [1e3 * gap for reply in replies for gap in reply.gaps]
                errors = sum(reply.error is not None for reply in replies)
                found[name].append((percentile(gaps, 50), percentile(gaps, 99), max(gaps), rss, errors))
    rows = []
    for name, figures in found.items():
        middle = [statistics.median(column) for column in zip(*figures, strict=True)]
        rows.append([name, *map(short, middle[:-1]), str(sum(int(one[-1]) for one in figures))])
    return table(["64 paced streams beside", "ITL p50 ms", "p99", "max", "frontend RSS MB", "errors"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--output", type=int, default=48, help="tokens of each of the many streams (%(default)s)")
    parser.add_argument("--clients", type=int, default=4, help="client processes (%(default)s)")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a measurement of the pace")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", choices=["many", "neighbours"])
    parser.add_argument("--read-slowly", metavar="URL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read_slowly:
        read_slowly(options.read_slowly)
        return
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < options.streams + 100:
        raise SystemExit(
            f"{options.streams} streams need as many file descriptors; the limit here is {hard} (ulimit -Hn)"
        )
    with tempfile.TemporaryDirectory(prefix="bench-") as temporary:
        folder = Path(temporary)
        model = make_model(folder / "model")
        if options.only != "neighbours":
            print(ten_thousand(folder, model, options), end="\n\n", flush=True)
        if options.only != "many":
            print(neighbours(folder, model, options))
    print(f"\nload average at the end {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
