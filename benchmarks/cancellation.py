"""A client leaves: milliseconds until the worker's handler knows. Bar: 100 ms.

Before the first item, in the middle of a stream, and for an answer that does not stream; on each network.
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

BAR_MS = 100.0
CASES = {
    "before the first item": ("silent", True),
    "mid-stream": ("speaks", True),
    "not streaming": ("silent", False),
}


def line(child: Child, start: str, *, seconds: float = 10.0) -> str:
    """The line of the worker's output that begins so."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for one in child.log.read_text().splitlines():
            if one.startswith(start):
                return one
        time.sleep(0.002)
    raise SystemExit(f"the worker never said {start!r}:\n{child.output()}")


def leave(stack: Stack, kind: str, *, stream: bool, name: str) -> float:
    """Ask, wait until the worker is at it, leave; the milliseconds until it knows."""
    worker = stack.children["worker"]
    host, _, port = stack.url.removeprefix("http://").rpartition(":")
    asked = {"model": "leaving", "messages": [{"role": "user", "content": f"{kind} {name}"}], "stream": stream}
    with socket.create_connection((host, int(port)), timeout=10) as client:
        client.sendall(http_request(json.dumps(asked).encode()))
        line(worker, f"started {name}")
        seen = b""
        while kind == "speaks" and b"word" not in seen:
            seen += client.recv(65536)
        left = time.monotonic_ns()
    return (int(line(worker, f"left {name} ").split()[2]) - left) / 1e6


def measure(folder: Path, network: Network, repeats: int) -> list[list[str]]:
    with Stack(folder / network.name, environ={**network.environ, "PYTHONUNBUFFERED": "1"}) as stack:
        stack.frontend(discovery=network.discovery)
        stack.start("worker", str(Path(__file__).with_name("leaving_worker.py")))
        stack.until("/v1/models", b'"leaving"')
        rows = []
        for case, (kind, stream) in CASES.items():
            times = [leave(stack, kind, stream=stream, name=f"{kind}-{stream}-{number}.") for number in range(repeats)]
            within = f"{sum(one <= BAR_MS for one in times)}/{repeats}"
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
        with networks(folder, *options.networks.split(",")) as found:
            for network in found:
                rows += measure(folder, network, options.repeats)
    print(table(["network", "the client leaves", "p50 ms", "max ms", "within 100 ms"], rows))


if __name__ == "__main__":
    main()
