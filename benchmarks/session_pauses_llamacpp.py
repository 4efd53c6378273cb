"""Blocks kept for paused sessions, with real processes: a frontend and one llama.cpp worker with the bundled model.

usage: python benchmarks/session_pauses_llamacpp.py SESSIONS [--seconds 150] [--sessions 12] [--rounds 2] [--share 0.25]

Recorded sessions with even numbers go on in real time with their pauses divided by 8, and prompts with a hundredth of
their tokens. The cache has room for `--share` of their longest prompts together. Each round runs for `--seconds`
without and with `--router-keep-paused`. The table has what was cached of the prompts, and the mean time to the answer's
end, which is one token long.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import aiohttp
from msgspec import Struct

from dynamo.lab.simulate.agents import AgentTraffic, read_agents, with_pauses
from dynamo.lab.simulate.traffic import SimulatedRequest
from figures import table
from processes import Stack

SHORTER, FASTER = 100, 8.0
LONGEST = 2000
"""Tokens; the model's context has 2,048."""


class Answered(Struct):
    prompt: int = 0
    cached: int = 0
    seconds: float = 0.0
    answers: int = 0


def chosen(folder: Path, count: int) -> list[list[SimulatedRequest]]:
    """The sessions, without sub-agents, that fit and have the most turns."""
    found: dict[str, list[SimulatedRequest]] = defaultdict(list)
    for each in with_pauses(read_agents(folder, AgentTraffic(largest=900_000, parity=0))):
        if "/" not in each.session:
            found[each.session].append(each)
    fits = [turns for turns in found.values() if max(each.input_tokens for each in turns) // SHORTER < LONGEST]
    return sorted(fits, key=len, reverse=True)[:count]


def prompt(each: SimulatedRequest) -> list[int]:
    """Its blocks, of fewer tokens."""
    tokens: list[int] = []
    for at, block in enumerate(each.block_ids):
        wanted = (at + 1) * each.block_size // SHORTER - len(tokens)
        tokens += random.Random(block).choices(range(300, 1500), k=wanted)
    return tokens or [300]


async def session(
    http: aiohttp.ClientSession, url: str, turns: list[SimulatedRequest], until: float, to: Answered
) -> None:
    await asyncio.sleep(random.Random(turns[0].session).uniform(0, 10))
    for each in turns:
        left = until - time.monotonic()
        if left <= 0:
            return
        body = {"model": "tiny", "prompt": prompt(each), "max_tokens": 1, "ignore_eos": True}
        headers = {"X-Dynamo-Session-ID": each.session}
        if each.final:
            headers["X-Dynamo-Session-Final"] = "true"
        begun = time.monotonic()
        async with http.post(f"{url}/v1/completions", json=body, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            usage = (await answer.json())["usage"]
        to.seconds += time.monotonic() - begun
        to.answers += 1
        to.prompt += usage["prompt_tokens"]
        to.cached += (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        await asyncio.sleep(min((each.pause or 0.0) / FASTER, max(0.0, until - time.monotonic())))


async def run(url: str, sessions: list[list[SimulatedRequest]], seconds: float) -> Answered:
    answered = Answered()
    until = time.monotonic() + seconds
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        await asyncio.gather(*(session(http, url, turns, until, answered) for turns in sessions))
    return answered


def one(sessions: list[list[SimulatedRequest]], cells: int, seconds: float, *, keep: bool) -> Answered:
    with tempfile.TemporaryDirectory() as folder, Stack(Path(folder)) as stack:
        stack.start(
            "worker", "-m", "dynamo.llama_cpp", "--model-name", "tiny", "--n-ctx", str(cells), "--cached-seqs", "64",
            "--discovery-backend", "file",
        )  # fmt: skip
        stack.frontend("--router-mode", "kv", *(["--router-keep-paused"] if keep else []))
        stack.until("/v1/models", b'"tiny"')
        return asyncio.run(run(stack.url, sessions, seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--sessions", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--share", type=float, default=0.25)
    args = parser.parse_args()
    sessions = chosen(args.folder, args.sessions)
    longest = [max(len(prompt(each)) for each in turns) for turns in sessions]
    cells = max(2304, int(sum(longest) * args.share) // 256 * 256)
    rows = []
    for number in range(args.rounds):
        for keep in (False, True):
            found = one(sessions, cells, args.seconds, keep=keep)
            rows.append(
                [
                    f"{number}", "keep paused" if keep else "as before", f"{sum(longest):,}", f"{cells:,}",
                    f"{found.answers:,}", f"{100 * found.cached / found.prompt:.1f} %",
                    f"{1000 * found.seconds / found.answers:,.0f}",
                ]
            )  # fmt: skip
            print(" | ".join(rows[-1]), flush=True)
    print(table(["round", "way", "working set", "cells", "answers", "cached", "mean, ms"], rows))


if __name__ == "__main__":
    main()
