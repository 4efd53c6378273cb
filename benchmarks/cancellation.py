"""Milliseconds from a client's disconnect until the worker's handler is cancelled. Target: 100 ms.

Measured before the first item, in the middle of a stream, and for an answer that is not streamed; on each network.
"""

from __future__ import annotations

import argparse
import json
import socket
import tempfile
import time
from pathlib import Path

from figures import percentile, short, table
from load import http_request
from networks import Network, networks
from processes import Child, Stack

TARGET_MS = 100.0
CASES = {
    "before the first item": ("waits", True),
    "mid-stream": ("streams", True),
    "not streaming": ("waits", False),
}


def wait_for_line(child: Child, start: str, *, seconds: float = 10.0) -> str:
    """The line of the worker's output that begins with `start`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for one in child.log.read_text().splitlines():
            if one.startswith(start):
                return one
        time.sleep(0.002)
    raise SystemExit(f"the worker never printed {start!r}:\n{child.output()}")


def disconnect(stack: Stack, kind: str, *, stream: bool, name: str) -> float:
    """Send a request, disconnect once the worker has it; returns the milliseconds until its handler is cancelled."""
    worker = stack.children["worker"]
    host, _, port = stack.url.removeprefix("http://").rpartition(":")
    body = {"model": "cancelled", "messages": [{"role": "user", "content": f"{kind} {name}"}], "stream": stream}
    with socket.create_connection((host, int(port)), timeout=10) as client:
        client.sendall(http_request(json.dumps(body).encode()))
        wait_for_line(worker, f"started {name}")
        received = b""
        while kind == "streams" and b"word" not in received:
            received += client.recv(65536)
        disconnected = time.monotonic_ns()
    return (int(wait_for_line(worker, f"cancelled {name} ").split()[2]) - disconnected) / 1e6


def measure(folder: Path, network: Network, repeats: int) -> list[list[str]]:
    with Stack(folder / network.name, environ={**network.environ, "PYTHONUNBUFFERED": "1"}) as stack:
        stack.frontend(discovery=network.discovery)
        stack.start("worker", str(Path(__file__).with_name("cancelled_worker.py")))
        stack.until("/v1/models", b'"cancelled"')
        rows = []
        for case, (kind, stream) in CASES.items():
            names = [f"{kind}-{stream}-{number}." for number in range(repeats)]
            times = [disconnect(stack, kind, stream=stream, name=name) for name in names]
            within = f"{sum(one <= TARGET_MS for one in times)}/{repeats}"
            rows.append([network.name, case, short(percentile(times, 50)), short(max(times)), within])
        return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default="file+tcp,etcd+tcp,etcd+nats")
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as temporary:
        folder = Path(temporary)
        with networks(folder, *options.networks.split(",")) as started:
            for network in started:
                rows += measure(folder, network, options.repeats)
    print(table(["network", "client disconnects", "p50 ms", "max ms", "within 100 ms"], rows))


if __name__ == "__main__":
    main()
