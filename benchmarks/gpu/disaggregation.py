"""Two vLLM engines on one GPU, with NIXL between them and without.

    PYTHONPATH=SITE python benchmarks/gpu/disaggregation.py --shape 8b      # about 8 minutes, most of it starts of vLLM
    PYTHON benchmarks/gpu/disaggregation.py --shape tiny --short            # proves on a CPU that it works

As for `compare.py`, no weights are needed; NIXL must be installed beside vLLM. One line of JSON for each measurement:

- `identical`: greedy answers of the two halves and of the decode engine alone, one at a time.
- `transfer`: prompts of some lengths, computed by the decode engine and by the prefill engine; `handoff_ms_per_1k` is
  what the hand-off adds to the time until the first token, `nixl_ms_per_1k` what vLLM says of its transfers.
- `streams`: the time between tokens of running streams while long prompts arrive, with a prefill and a decode engine,
  and with two engines that do both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
import tempfile
import time
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import aiohttp

sys.path.insert(0, str(Path(__file__).parent.parent))

from figures import percentile
from gpu.compare import SHAPES, _config, environment, padded, say, versions
from processes import Stack, free_port
from prompts import MODEL, Prompts, make_model

SPLIT = ("prefill", "decode")
WHOLE = ("agg", "agg")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--short", action="store_true", help="short prompts and few of them")
    parser.add_argument("--memory", default="0.4", help="share of the GPU for each engine (%(default)s)")
    parser.add_argument("--patience", type=float, default=400, help="seconds for the engines to start (%(default)s)")
    options = parser.parse_args()
    options.lengths = (64, 512) if options.short else (1_000, 4_000, 16_000)
    options.requests, options.streams, options.arrivals = (4, 2, 3) if options.short else (50, 16, 20)
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        options.model = padded(make_model(Path(place) / "model", **_config(options.shape)))
        for roles in (SPLIT, WHOLE):
            with Stack(Path(place) / roles[0], environ=environment()) as stack:
                asyncio.run(measure(Engines(stack, roles, options), options))


class Engines:
    """The workers of one arrangement, and a frontend for each policy that is compared."""

    def __init__(self, stack: Stack, roles: tuple[str, str], options: argparse.Namespace) -> None:
        self.roles, self.stack, self.urls, self.status = roles, stack, dict[str, str](), list[int]()
        longest = str(max(options.lengths) + 1_024)
        small = ("--enforce-eager", "--kv-cache-memory-bytes", "64M", "--block-size", "32")
        memory = small if options.shape == "tiny" else ("--gpu-memory-utilization", options.memory)
        for number, role in enumerate(roles):
            self.status.append(free_port())
            stack.environ |= {"DYN_SYSTEM_PORT": str(self.status[-1]), "DYN_SYSTEM_HOST": "127.0.0.1"}
            words = (str(options.model), "--model-name", MODEL, "--discovery-backend", "file", "--load-format", "dummy")
            flags = ("--disaggregation-mode", role, "--max-model-len", longest, *memory)
            stack.start(f"{role}{number}", "-m", "dynamo.vllm", *words, *flags)
            # One after the other: vLLM measures the free memory of the GPU when it starts.
            self._until_ready(f"{role}{number}", options.patience)
        del stack.environ["DYN_SYSTEM_PORT"]
        for policy in ("never", "always") if roles == SPLIT else ("never",):
            stack.frontend("--router-conditional-disagg-config", json.dumps({"policy": policy}), name=policy)
            stack.until("/v1/models", f'"{MODEL}"'.encode())
            self.urls[policy] = stack.url

    def _until_ready(self, name: str, seconds: float) -> None:
        child, deadline = self.stack.children[name], time.monotonic() + seconds
        while "worker for" not in child.log.read_text(errors="replace"):
            child.check()
            if time.monotonic() > deadline:
                raise SystemExit(f"{name} is not ready:\n{child.output()}")
            time.sleep(0.2)

    async def clear(self, http: aiohttp.ClientSession) -> None:
        async with http.post(f"{self.urls['never']}/clear_kv_blocks") as answer:
            answer.raise_for_status()

    async def nixl_seconds(self, http: aiohttp.ClientSession) -> float:
        """Of all transfers so far, by the decode engine's own count."""
        async with http.get(f"http://127.0.0.1:{self.status[-1]}/metrics") as answer:
            page = await answer.text()
        return sum(map(float, re.findall(r"^vllm:nixl_xfer_time_seconds_sum\S* (\S+)$", page, re.MULTILINE)))


async def ask(http: aiohttp.ClientSession, url: str, prompt: str, tokens: int) -> tuple[str, list[float]]:
    """The answer, and when the request was sent and each chunk came."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
            "stream": True}  # fmt: skip
    text, times = "", [time.monotonic()]
    async with http.post(f"{url}/v1/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            if line.startswith(b"data: {"):
                times.append(time.monotonic())
                text += "".join(choice["text"] for choice in json.loads(line[6:]).get("choices", ()))
    return text, times


async def measure(engines: Engines, options: argparse.Namespace) -> None:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as http:
        if engines.roles == SPLIT:
            await identical(engines, http, options)
            await transfer(engines, http, options)
        await streams(engines, http, options)


async def identical(engines: Engines, http: aiohttp.ClientSession, options: argparse.Namespace) -> None:
    prompts = [Prompts(number).next(40 + 37 * number % 900) for number in range(options.requests)]
    answers = []
    for policy in ("never", "always"):
        await engines.clear(http)
        answers.append([(await ask(http, engines.urls[policy], prompt, 32))[0] for prompt in prompts])
    same = sum(one == other for one, other in zip(*answers, strict=True))
    report("identical", options, requests=len(prompts), identical=same)


async def transfer(engines: Engines, http: aiohttp.ClientSession, options: argparse.Namespace) -> None:
    seeds = count(10_000)
    for length in options.lengths:
        took: dict[str, list[float]] = {}
        rounds = 5
        before = await engines.nixl_seconds(http)
        for policy in ("never", "always"):
            for number in range(rounds + 1):
                prompt = Prompts(next(seeds)).next(length)
                _, times = await ask(http, engines.urls[policy], prompt, 2)
                if number:  # the first one connects the engines, and compiles for this length
                    took.setdefault(policy, []).append(times[1] - times[0])
        moved = (await engines.nixl_seconds(http) - before) / (rounds + 1)
        here, there = (percentile(took[policy], 50) for policy in ("never", "always"))
        report("transfer", options, prompt=length, ttft_here_ms=1e3 * here, ttft_split_ms=1e3 * there,
               handoff_ms_per_1k=1e6 * (there - here) / length, nixl_ms_per_1k=1e6 * moved / length)  # fmt: skip


async def streams(engines: Engines, http: aiohttp.ClientSession, options: argparse.Namespace) -> None:
    url, long = engines.urls.get("always", engines.urls["never"]), max(options.lengths)
    tokens = 64 if options.short else 1_000
    running = [asyncio.create_task(ask(http, url, Prompts(1_000 + n).next(50), tokens)) for n in range(options.streams)]
    await asyncio.sleep(1)
    arriving = []
    for number in range(options.arrivals):
        arriving.append(asyncio.create_task(ask(http, url, Prompts(2_000 + number).next(long), 2)))
        await asyncio.sleep(0.5)
    times = [times for _, times in await asyncio.gather(*running)]
    gaps = [later - earlier for each in times for earlier, later in pairwise(each[1:])]
    firsts = [each[1] - each[0] for _, each in await asyncio.gather(*arriving)]
    report("streams", options, roles="+".join(engines.roles), streams=len(running), long_prompts=len(firsts),
           long_prompt=long, itl_p50_ms=1e3 * percentile(gaps, 50), itl_p99_ms=1e3 * percentile(gaps, 99),
           itl_most_ms=1e3 * max(gaps), long_ttft_p50_ms=1e3 * percentile(firsts, 50))  # fmt: skip


def report(what: str, options: argparse.Namespace, **figures: Any) -> None:
    rounded = {name: round(value, 2) if isinstance(value, float) else value for name, value in figures.items()}
    print(json.dumps({"what": what, "shape": options.shape, **rounded, "versions": versions()}), flush=True)
    say(f"{what}: {rounded}")


if __name__ == "__main__":
    main()
