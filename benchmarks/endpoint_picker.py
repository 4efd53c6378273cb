"""What a gateway's picker costs: `python benchmarks/endpoint_picker.py`, with the Envoy of `make test-gateway`.

A real Envoy, a picker as a process, and two servers of llama.cpp with a model of random weights. The processor time is
that of the picker's process, between two readings of /proc.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import aiohttp

from gateway.install import ENVOY, why_missing
from gateway.test_envoy import picker, prompts, standalone, stock_servers
from support.envoy import envoy

REQUESTS, AT_A_TIME, TOKENS = 2000, 8, 64
TICKS = os.sysconf("SC_CLK_TCK")


def used(pid: int) -> float:
    """Seconds of a processor so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


async def load(url: str, pid: int, requests: int, *, stream: bool) -> tuple[float, list[float], int]:
    """The picker's microseconds per request, the seconds until each answer began, and the chunks of the answers."""
    texts, numbers, began, chunks = prompts(11), iter(range(requests)), [], 0

    async def one_after_the_other(http: aiohttp.ClientSession) -> None:
        nonlocal chunks
        for _ in numbers:
            fields = {"model": "m", "prompt": next(texts), "max_tokens": TOKENS if stream else 1, "stream": stream}
            start = time.perf_counter()
            sent = {"content-type": "application/json"}
            async with http.post(f"{url}/v1/completions", data=json.dumps(fields), headers=sent) as answer:
                began.append(time.perf_counter() - start)
                assert answer.status == 200, await answer.text()
                async for _ in answer.content.iter_any():
                    chunks += 1

    before = used(pid)
    async with aiohttp.ClientSession() as http:
        await asyncio.gather(*(one_after_the_other(http) for _ in range(AT_A_TIME)))
    return (used(pid) - before) / requests * 1e6, began, chunks


async def main() -> None:
    if why := why_missing():
        sys.exit(f"there is no Envoy: {why}")
    with tempfile.TemporaryDirectory() as name, ExitStack() as closing:
        folder = Path(name)
        servers = closing.enter_context(stock_servers(folder))
        for duplex in (False, True):
            with (
                picker(folder, *standalone(folder, servers), DYN_SYSTEM_PORT="0") as (process, address),
                envoy(ENVOY, folder, [address], servers, duplex=duplex) as url,
            ):
                status = next(line for line in process.said if "status at" in line)
                metrics = status.partition("status at ")[2].replace("/health", "/metrics")
                mode = "FULL_DUPLEX_STREAMED" if duplex else "BUFFERED, NONE"
                await load(url, process.popen.pid, 200, stream=False)
                for stream in (False, True):
                    count = REQUESTS if not stream else REQUESTS // 4
                    cost, began, chunks = await load(url, process.popen.pid, count, stream=stream)
                    median = statistics.median(began) * 1e3
                    print(
                        f"{mode}; {'streamed, ' + str(TOKENS) + ' tokens' if stream else 'one token'}: "
                        f"{cost:.0f} µs of the picker per request, {chunks / count:.1f} chunks, "
                        f"begins after {median:.1f} ms"
                    )
                async with aiohttp.ClientSession() as http, http.get(metrics) as answer:
                    text = await answer.text()
                found = dict(line.rsplit(" ", 1) for line in text.splitlines() if line and line[0] != "#")
                for name in ("dynamo_epp_pick_seconds", "dynamo_component_router_overhead_total_ms"):
                    sums = [float(v) for k, v in found.items() if k.startswith(f"{name}_sum")]
                    counts = [float(v) for k, v in found.items() if k.startswith(f"{name}_count")]
                    if sums and sum(counts):
                        print(f"  {name}: {sum(sums) / sum(counts):.6f} on average")
        cost, began, _ = await load(f"http://{servers[0]}", os.getpid(), REQUESTS, stream=False)
        print(f"straight to one server: begins after {statistics.median(began) * 1e3:.1f} ms")


if __name__ == "__main__":
    asyncio.run(main())
