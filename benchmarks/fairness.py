"""One key floods a server while another asks now and then: what the light user waits, and how fast refusals come.

    python benchmarks/fairness.py [--seconds 20] [--flood 10]

Simulated workers, the KV router with its queue. The capacity is measured first; then a key sends `--flood` times as
many requests as can be served, beside a light user with one request at a time, who pauses for a random time: after a
fixed one he would always arrive at the same moment of a worker's step. `--limits` are of the flooding key.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aiohttp

from prompts import MODEL, make_model

KEYS = """
[flood]
key = "flood"
{limits}

[light]
key = "light"
"""


def start(place: Path, *words: str, **more: str) -> subprocess.Popen[bytes]:
    environ = {**os.environ, "DYN_FILE_KV": str(place / "kv"), **more}
    with (place / "log").open("ab") as log:
        return subprocess.Popen([sys.executable, "-m", *words], stdout=log, stderr=log, env=environ, cwd=place)


def rss(process: subprocess.Popen[bytes]) -> int:
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) // 1024
    return 0


PAUSES = random.Random(5)


class User:
    """TTFT of what was answered and the time of refusals, in milliseconds."""

    def __init__(self, http: aiohttp.ClientSession, url: str, key: str) -> None:
        self.ttft: list[float] = []
        self.refused: list[float] = []
        self._http = http
        self._url = url
        self._headers = {"Authorization": f"Bearer {key}"}
        self._count = 0

    async def ask(self) -> None:
        self._count += 1
        begun = time.perf_counter()
        prompt = f"{self._headers} {self._count} " + "the quick brown fox jumps over the lazy dog " * 10
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 16, "stream": True}
        async with self._http.post(f"{self._url}/v1/completions", json=body, headers=self._headers) as answer:
            if answer.status != 200:
                await answer.read()
                self.refused.append((time.perf_counter() - begun) * 1e3)
                return
            await answer.content.readline()
            self.ttft.append((time.perf_counter() - begun) * 1e3)
            async for _ in answer.content:
                pass

    async def keep_asking(self, until: float, pause: float = 0.0) -> None:
        while time.perf_counter() < until:
            await self.ask()
            await asyncio.sleep(PAUSES.uniform(0, 2 * pause))


def at(values: list[float], share: float) -> str:
    return f"{sorted(values)[min(len(values) - 1, int(len(values) * share))]:.0f}" if values else "-"


async def measure(place: Path, url: str, seconds: float, flood: int) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:

        async def ready() -> bool:
            try:
                async with http.get(f"{url}/v1/models", headers={"Authorization": "Bearer light"}) as answer:
                    return bool((await answer.json())["data"])
            except aiohttp.ClientError:
                return False

        async def phase(name: str, flooding: float) -> float:
            light, heavy = User(http, url, "light"), User(http, url, "flood")
            lasts = seconds if flooding else min(seconds, 8)
            until = time.perf_counter() + lasts
            tasks = [asyncio.create_task(light.keep_asking(until, 0.2))] if name != "capacity" else []
            if name == "capacity":
                tasks += [asyncio.create_task(light.keep_asking(until)) for _ in range(32)]
            sent = 0
            begun = time.perf_counter()
            running: set[asyncio.Task[None]] = set()
            while flooding and time.perf_counter() < until:
                while sent < (time.perf_counter() - begun) * flooding:
                    sent += 1
                    task = asyncio.create_task(heavy.ask())
                    running.add(task)
                    task.add_done_callback(running.discard)
                await asyncio.sleep(0.005)
            await asyncio.gather(*tasks)
            for task in tuple(running):
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            ttft, refused = light.ttft, heavy.refused
            print(
                f"{name:10} light: {len(ttft)} answers, TTFT p50 {at(ttft, 0.5)} p99 {at(ttft, 0.99)}"
                f" mean {statistics.mean(ttft or [0]):.0f} ms, {len(light.refused)} refused"
                f" | flood: {len(heavy.ttft)} answers, {len(refused)} refused in"
                f" p50 {at(refused, 0.5)} p99 {at(refused, 0.99)} ms | frontend {rss(FRONTEND)} MB",
                flush=True,
            )
            return len(light.ttft) / lasts

        while not await ready():  # noqa: ASYNC110 (another process becomes ready)
            await asyncio.sleep(0.2)
        rate = await phase("capacity", 0) if flood else 0
        await phase("alone", 0)
        await phase("flooded", rate * flood)
        await phase("after", 0)


FRONTEND: subprocess.Popen[bytes]


def main() -> None:
    global FRONTEND
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--flood", type=int, default=10)
    parser.add_argument("--port", type=int, default=18714)
    parser.add_argument("--speedup", default="0.2", help="of the simulated workers: below 1 is slower than a GPU")
    parser.add_argument("--threshold", default="0", help="empty for the server's own default")
    parser.add_argument("--router-mode", default="kv")
    parser.add_argument("--limits", default="", help="TOML lines for the flooding key")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        model = make_model(place / "model")
        (place / "keys.toml").write_text(KEYS.format(limits=arguments.limits.replace(";", "\n")))
        worker = start(
            place, "dynamo.mocker", "--model-path", str(model), "--model-name", MODEL, "--num-workers", "2",
            "--block-size", "16", "--speedup-ratio", arguments.speedup, "--max-num-seqs", "16",
        )  # fmt: skip
        FRONTEND = start(
            place, "dynamo.frontend", "--http-port", str(arguments.port), "--router-mode", arguments.router_mode,
            *(("--router-queue-threshold", arguments.threshold) if arguments.threshold else ()),
            "--api-keys-file", str(place / "keys.toml"),
            DYN_LOG="warn",
        )  # fmt: skip
        try:
            asyncio.run(measure(place, f"http://127.0.0.1:{arguments.port}", arguments.seconds, arguments.flood))
        finally:
            for process in (FRONTEND, worker):
                process.terminate()
                process.wait(10)


if __name__ == "__main__":
    main()
