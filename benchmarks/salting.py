"""What it costs that cached prefixes have keyed names, and that each API key has its own.

    python benchmarks/salting.py [--keys 8] [--turns 5]

CPU time of naming a prompt's blocks, by the routers' hash alone and as llama.cpp's cache names them (best of many); and
a real worker and frontend whose keys all send one system prompt: what is cached, apart and with `--share-kv-cache`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import aiohttp

from dynamo.kv.block_names import BlockNames
from dynamo.kv.hashing import PromptHashes, prompt_hashes
from figures import table
from processes import Stack

BLOCK = 16
MODEL = "tiny"


def best(work: Callable[[], object], repeats: int = 300) -> float:
    """Microseconds of CPU."""
    found = []
    for _ in range(repeats):
        began = time.thread_time()
        work()
        found.append(time.thread_time() - began)
    return min(found) * 1e6


def naming() -> list[tuple[str, ...]]:
    rows = []
    for count in (512, 2048, 8192):
        tokens = random.Random(count).choices(range(32000), k=count)
        names = BlockNames(BLOCK)
        cells = (
            best(lambda tokens=tokens: prompt_hashes(tokens, BLOCK)),  # type: ignore[misc]
            best(lambda tokens=tokens, names=names: names.of(tokens)),  # type: ignore[misc]
            best(lambda tokens=tokens, names=names: names.of(tokens, "a key")),  # type: ignore[misc]
        )
        more = (cells[1] - cells[0]) / (count // BLOCK)
        rows.append((str(count), *(f"{cell:.0f}" for cell in cells), f"{more:.2f}"))
    return rows


def routing(keys: int) -> list[tuple[str, ...]]:
    """The router's own hashes of a prompt of which 3,000 of 4,000 tokens are common, with one salt and with many."""
    rng = random.Random(1)
    common = rng.choices(range(32000), k=3000)
    prompts = [[*common, *rng.choices(range(32000), k=1000)] for _ in range(200)]

    def cost(salts: Sequence[str | None]) -> float:
        hashes = PromptHashes(BLOCK)
        found = []
        for number, prompt in enumerate(prompts):
            began = time.thread_time()
            hashes.of(prompt, cache_salt=salts[number % len(salts)])
            found.append(time.thread_time() - began)
        return statistics.median(found[len(found) // 2 :]) * 1e6

    each = [f"key {number}" for number in range(keys)]
    return [("none", f"{cost([None]):.0f}"), ("one", f"{cost(['key']):.0f}"), (str(keys), f"{cost(each):.0f}")]


async def sharing(stack: Stack, keys: Sequence[str], turns: int) -> tuple[str, ...]:
    system = " ".join(f"rule {number} of this house" for number in range(120))
    prompt = cached = 0
    firsts, later = list[float](), list[float]()
    async with aiohttp.ClientSession() as http:
        for turn in range(turns):
            for key in keys:
                body = {
                    "model": MODEL, "max_tokens": 4, "stream": True, "stream_options": {"include_usage": True},
                    "messages": [{"role": "system", "content": system}, {"role": "user", "content": f"{key} {turn}"}],
                }  # fmt: skip
                began = time.perf_counter()
                headers = {"Authorization": f"Bearer {key}"}
                async with http.post(f"{stack.url}/v1/chat/completions", json=body, headers=headers) as answer:
                    assert answer.status == 200, await answer.text()
                    await answer.content.readline()
                    (later if turn else firsts).append((time.perf_counter() - began) * 1e3)
                    lines = (await answer.read()).splitlines()
                usage = next(json.loads(line[6:])["usage"] for line in lines if b'"usage":{' in line)
                prompt += usage["prompt_tokens"]
                cached += (usage["prompt_tokens_details"] or {}).get("cached_tokens", 0)
    cells = (f"{100 * cached / prompt:.0f} %", f"{statistics.median(firsts):.0f}", f"{statistics.median(later):.0f}")
    return (*cells, f"{prompt // (turns * len(keys))}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=8)
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    heads = ("tokens", "routers' hash, µs", "names, µs", "with a salt, µs", "more per block, µs")
    print(table(heads, naming()))
    print()
    print(table(("salts", "routers' hashes of 4,000 tokens, µs"), routing(given.keys)))
    print()
    keys = [f"key-{number}" for number in range(given.keys)]
    rows = []
    for name, flags in (("apart", ()), ("shared", ("--share-kv-cache",))):
        with tempfile.TemporaryDirectory() as folder, Stack(Path(folder)) as stack:
            stack.environ["DYN_API_KEY"] = ",".join(keys)
            stack.start("worker", "-m", "dynamo.llama_cpp", "--model", "tiny", "--n-ctx", "32768")
            stack.frontend("--router-mode", "kv", *flags)
            stack.until("/health", b'"generate"')
            rows.append((name, *asyncio.run(sharing(stack, keys, given.turns))))
    print(table(("prefixes", "cached", "TTFT of first turns, ms", "of later ones", "tokens of a prompt"), rows))


if __name__ == "__main__":
    main()
