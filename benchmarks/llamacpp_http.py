"""`dynamo-run in=http out=llamacpp` beside llama-server, both over HTTP as a user would start them.

    python benchmarks/llamacpp_http.py MODEL.gguf [--users 1,4,16] [--kept 0,64] [--tokens 64] [ENGINE FLAGS]

llama-server is the one in the wheel of xllamacpp, the library that the engine uses, with its own defaults but for room
and places: as many as ours. Each round asks one, then the other, with the same texts that neither has seen. "Kept"
are prompts of about 320 tokens that were answered before, whose prefixes both servers keep as they think best.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp

_SERVER = """
import sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.port = sys.argv[1], 0
params.n_ctx, params.n_parallel, params.kv_unified = int(sys.argv[2]), int(sys.argv[3]), True
if sys.argv[4] != "0":
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(sys.argv[4])
server = xllamacpp.Server(params)
print("listening on", server.listening_address, flush=True)
sys.stdin.read()
"""
_WORDS = (
    "river stone",
    "window",
    "garden",
    "copper",
    "letter",
    "winter",
    "orange",
    "silver",
    "paper",
    "bridge",
    "forest",
)


class Served:
    """One of the two servers."""

    def __init__(self, name: str, command: Sequence[str], model: str) -> None:
        self.name = name
        self.model = model
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self.process.stdout
        self.url = ""
        for line in self.process.stdout:
            if found := re.search(r"(?:listening|serving) on (http://\S+)", line):
                self.url = found[1]
                break
        if not self.url:
            raise SystemExit(f"{name} does not start")
        self._rest = threading.Thread(target=self.process.stdout.read, daemon=True)
        self._rest.start()

    def cpu_seconds(self) -> float:
        """What the process and its children took."""
        return sum(map(_cpu_seconds, _with_children(self.process.pid)))

    def end(self) -> None:
        self.process.terminate()
        self.process.wait()
        self._rest.join()


def _with_children(pid: int) -> list[int]:
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += _with_children(int(child))
    return found


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def prompt(number: int, words: int) -> str:
    """A text that shares nothing with those of other numbers."""
    return f"Item {number}: " + " ".join(_WORDS[(number * 7 + at * (number % 13 + 1)) % 11] for at in range(words))


async def ask(session: aiohttp.ClientSession, server: Served, text: str, tokens: int) -> tuple[int, float]:
    """Tokens of a streamed greedy answer by its usage, and seconds to the first one."""
    body: dict[str, Any] = {
        "model": server.model, "prompt": text, "max_tokens": tokens, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True}, "ignore_eos": True,
    }  # fmt: skip
    begun, first, count = time.perf_counter(), 0.0, 0
    async with session.post(f"{server.url}/v1/completions", json=body) as response:
        if response.status != 200:
            raise SystemExit(f"{server.name}: {response.status} {await response.text()}")
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            first = first or time.perf_counter() - begun
            if found := re.search(rb'"completion_tokens":\s*(\d+)', line):
                count = int(found[1])
    return count, first


async def measured(server: Served, texts: Sequence[str], tokens: int, users: int) -> tuple[float, float, float]:
    """Tokens per second, microseconds of CPU per token, seconds to the first token (median)."""
    waiting = iter(texts)

    async def user(session: aiohttp.ClientSession) -> list[tuple[int, float]]:
        return [await ask(session, server, text, tokens) for text in waiting]

    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True), timeout=aiohttp.ClientTimeout()
    ) as session:
        begun, cpu = time.perf_counter(), server.cpu_seconds()
        answers = [one for each in await asyncio.gather(*(user(session) for _ in range(users))) for one in each]
        seconds, spent = time.perf_counter() - begun, server.cpu_seconds() - cpu
    count = sum(tokens for tokens, _ in answers)
    if count != tokens * len(texts):
        raise SystemExit(f"{server.name} gave {count} tokens, not {tokens * len(texts)}")
    return count / seconds, spent / count * 1e6, statistics.median(first for _, first in answers)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--users", default="1,4,16")
    parser.add_argument("--kept", default="0,64")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=48, help="words of a prompt")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--room", type=int, default=32768, help="cells of both KV caches")
    parser.add_argument("--server-threads", type=int, default=0)
    given, flags = parser.parse_known_args()
    model = given.model.resolve()
    numbers = itertools.count(1)
    for kept in map(int, given.kept.split(",")):
        servers = (
            Served(
                "out=llamacpp",
                [str(Path(sys.executable).parent / "dynamo-run"), "in=http", "out=llamacpp", str(model),
                 "--http-port", "0", "--model-name", "m", "--", "--n-ctx", str(given.room), "--max-num-seqs", "16",
                 "--cached-seqs", "64",
                 *flags],
                "m",
            ),
            Served(
                "llama-server",
                [sys.executable, "-c", _SERVER, str(model), str(given.room), "16", str(given.server_threads)], "m",
            ),
        )  # fmt: skip
        try:
            for server in servers:
                texts = [prompt(next(numbers), 250) for _ in range(kept)]
                asyncio.run(measured(server, [*texts, prompt(next(numbers), 48)], 1, 4))
            for users in map(int, given.users.split(",")):
                rounds: dict[str, list[tuple[float, float, float]]] = {server.name: [] for server in servers}
                for _ in range(given.rounds):
                    texts = [prompt(next(numbers), given.prompt) for _ in range(max(users, 2))]
                    for server in servers:
                        rounds[server.name].append(asyncio.run(measured(server, texts, given.tokens, users)))
                print(f"{model.name}, {kept} kept, {users} at once, load {os.getloadavg()[0]:.1f}")
                for name, figures in rounds.items():
                    speed, cpu, first = (statistics.median(column) for column in zip(*figures, strict=True))
                    shown = f"{speed:8.1f} tok/s  {cpu / 1000:6.2f} ms CPU per token  {first * 1000:6.0f} ms TTFT"
                    print(f"  {name:14} {shown}")
                pairs = list(zip(*rounds.values(), strict=True))
                speed = statistics.median(one[0] / other[0] for one, other in pairs)
                cpu = statistics.median(one[1] / other[1] for one, other in pairs)
                print(f"  ratio          {speed:8.2f}        {cpu:6.2f}", flush=True)
        finally:
            for server in servers:
                server.end()


if __name__ == "__main__":
    main()
