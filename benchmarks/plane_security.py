"""CPU cost of the request plane per token: as it is, with a token, and with mutual TLS. Both ends are processes.

    python benchmarks/plane_security.py

64 streams, a frame every 4 ms with a token of each, 1,500 frames; the modes alternate and the medians are shown.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import resource
import statistics
import subprocess
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvloop

from dynamo.protocols.errors import DynamoException
from dynamo.protocols.instance import Instance
from dynamo.runtime import Context
from dynamo.runtime.names import EndpointId
from dynamo.runtime.plane.base import route_path
from dynamo.runtime.plane.route import Route
from dynamo.runtime.plane.tcp import TcpConfig, TcpPlane
from dynamo.runtime.plane.tls import PlaneTls

STREAMS, STEPS, STEP_SECONDS, ROUNDS = 64, 1500, 0.004, 3
CERTIFICATE = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=bench -addext"


def configs(folder: Path) -> dict[str, TcpConfig]:
    cert, key = folder / "cert.pem", folder / "key.pem"
    files = ["subjectAltName=IP:127.0.0.1", "-out", str(cert), "-keyout", str(key)]
    subprocess.run([*CERTIFICATE.split(), *files], check=True, capture_output=True)
    return {
        "plain": TcpConfig(),
        "token": TcpConfig(token="secret"),
        "mutual TLS": TcpConfig(tls=PlaneTls(cert=cert, key=key, ca=cert)),
    }


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Counting:
    """Sets `ended` when the last of all streams has ended."""

    def __init__(self, streams: int) -> None:
        self._left = streams
        self.ended = asyncio.Event()

    def tokens(self, ids: list[int]) -> None: ...

    def item(self, value: Any) -> None: ...

    def end(self) -> None:
        self._left -= 1
        if not self._left:
            self.ended.set()

    def fail(self, error: DynamoException) -> None:
        raise error


async def work(config: TcpConfig, parent: Connection) -> None:
    outlets: list[Any] = []
    all_here = asyncio.Event()

    def handle(request: Any, context: Context, outlet: Any) -> None:
        outlets.append(outlet)
        if len(outlets) == STREAMS:
            all_here.set()

    plane = TcpPlane(config)
    parent.send(await plane.serve(Route(route_path(EndpointId("a", "b", "c"), 1), handle)))
    await all_here.wait()
    before = cpu_seconds()
    for step in range(STEPS):
        for outlet in outlets:
            outlet.tokens([step])
        await asyncio.sleep(STEP_SECONDS)
    for outlet in outlets:
        outlet.end()
    await asyncio.sleep(0)
    parent.send(cpu_seconds() - before)
    await asyncio.to_thread(parent.recv)
    await plane.close()


async def read(config: TcpConfig, address: str, parent: Connection) -> None:
    plane = TcpPlane(config)
    there = Instance(instance_id=1, namespace="a", component="b", endpoint="c", transport="tcp", address=address)
    channel = plane.channel(there)
    await channel.open()
    sink = Counting(STREAMS)
    before = cpu_seconds()
    for _ in range(STREAMS):
        channel.send("x", Context(), sink, columnar=True)
    await sink.ended.wait()
    parent.send(cpu_seconds() - before)
    await plane.close()


def run_worker(config: TcpConfig, parent: Connection) -> None:
    uvloop.run(work(config, parent))


def run_client(config: TcpConfig, address: str, parent: Connection) -> None:
    uvloop.run(read(config, address, parent))


def measure(config: TcpConfig) -> tuple[float, float]:
    """CPU microseconds per token of the worker and of the client."""
    spawn = multiprocessing.get_context("spawn")
    (worker, workers_end), (client, clients_end) = spawn.Pipe(), spawn.Pipe()
    serving = spawn.Process(target=run_worker, args=(config, workers_end))
    serving.start()
    reading = spawn.Process(target=run_client, args=(config, worker.recv(), clients_end))
    reading.start()
    used = worker.recv(), client.recv()
    reading.join()
    worker.send(None)
    serving.join()
    tokens = STREAMS * STEPS
    return used[0] / tokens * 1e6, used[1] / tokens * 1e6


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        modes = configs(Path(folder))
        figures: dict[str, list[tuple[float, float]]] = {mode: [] for mode in modes}
        for _ in range(ROUNDS):
            for mode, config in modes.items():
                figures[mode].append(measure(config))
    print("| | worker, CPU µs per token | client |\n|---|---|---|")
    for mode, found in figures.items():
        worker, client = (statistics.median(column) for column in zip(*found, strict=True))
        print(f"| {mode} | {worker:.2f} | {client:.2f} |")


if __name__ == "__main__":
    main()
