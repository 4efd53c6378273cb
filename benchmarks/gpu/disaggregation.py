"""Two vLLM engines on one GPU, with NIXL between them and without.

    PYTHONPATH=SITE python benchmarks/gpu/disaggregation.py --shape 8b      # about 5 minutes, most of it starts of vLLM
    PYTHON benchmarks/gpu/disaggregation.py --shape tiny --short            # proves on a CPU that it works

As for `compare.py`, no weights are needed; NIXL must be installed beside vLLM. `nixl_check.py` runs first: where the
memory of the GPU cannot be moved, that of the host is. One line of JSON for each measurement, also in `$OUT`:

- `identical`: greedy answers, one at a time, of the decode engine that computes the prompt (a), that has it in its
  cache (b), and that fetches it (c). In (b) and (c) the engine computes the last token of the prompt alone, so that
  answers are equal bit for bit if what was fetched is. In (a) it computes all of the prompt in one batch, whose sums
  are rounded in another way; how often that alone changes an answer is the comparison of (a) with (b).
- `transfer`: prompts of some lengths, computed by the decode engine and by the prefill engine; `handoff_ms_per_1k` is
  what the hand-off adds to the time until the first token, `nixl_ms_per_1k` what vLLM says of its transfers.
- `streams`: the time between tokens of running streams while long prompts arrive, with a prefill and a decode engine,
  and with two engines that do both. Equal arrivals; both share one GPU, without MPS.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from itertools import count, pairwise
from pathlib import Path

import aiohttp

sys.path.insert(0, str(Path(__file__).parent.parent))

from figures import percentile
from gpu.nixl_check import usable
from gpu.workers import BLOCK, Answer, Fleet, ask, clear, common, model, report, session, tokens

SPLIT = ("prefill", "decode")
WHOLE = ("agg", "agg")
ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}


def main() -> None:
    parser = common(__doc__)
    parser.add_argument("--kv-bytes", default="20G", help="KV cache of each engine (%(default)s)")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between long prompts (%(default)s)")
    parser.add_argument("--sets", default="identical,transfer,streams", help="of %(default)s")
    parser.add_argument("--arrangements", default="split,whole", help="of %(default)s")
    parser.add_argument("--connector", default="{}", help="JSON for kv_connector_extra_config")
    parser.add_argument("--buffer", choices=["auto", "cuda", "cpu"], default="auto", help="memory that NIXL moves")
    parser.add_argument("vllm", nargs="*", help="further flags of vLLM, after --")
    options = parser.parse_args()
    options.lengths = (64, 512) if options.short else (1_000, 4_000, 16_000)
    options.requests, options.streams, options.arrivals = (4, 2, 3) if options.short else (50, 16, 20)
    environ: dict[str, str] = {}
    if options.buffer == "auto":
        way = usable(16, 300) if options.shape == "tiny" else usable()
        if way is None:
            raise SystemExit("NIXL moves no memory here")
        options.buffer, environ = way
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        options.model = model(Path(place) / "model", options.shape)
        for name, roles in (("split", SPLIT), ("whole", WHOLE)):
            if name in options.arrangements.split(","):
                fleet = Fleet(Path(place) / name, options, environ)
                with fleet:
                    asyncio.run(measure(Arrangement(fleet, roles, options), options))


class Arrangement:
    """Two workers, and a frontend for each policy that is compared."""

    def __init__(self, fleet: Fleet, roles: tuple[str, str], options: argparse.Namespace) -> None:
        self.fleet, self.split = fleet, roles == SPLIT
        names = [f"{role}{number}" for number, role in enumerate(roles)]
        begun = time.monotonic()
        for name, role in zip(names, roles, strict=True):
            fleet.worker(name, *engine_flags(role, options))
        fleet.until_ready(*names)
        self.decode = names[-1]
        self.never = self.always = fleet.policy("never", *policy("never"))
        if self.split:
            self.always = fleet.policy("always", *policy("always"))
        report("start", options, roles="+".join(roles), buffer=options.buffer, seconds=time.monotonic() - begun)

    def fetched(self) -> tuple[float, float]:
        """How many prompts the decode engine fetched, and the seconds of that, by its own count."""
        names = ("vllm:nixl_xfer_time_seconds_count", "vllm:nixl_xfer_time_seconds_sum")
        seen = [self.fleet.total(self.decode, name) for name in names]
        return seen[0], seen[1]

    async def until_fetched(self, wanted: float) -> tuple[float, float]:
        """vLLM counts a transfer some steps after it; those that failed never."""
        for _ in range(50):
            if (found := self.fetched())[0] >= wanted:
                break
            await asyncio.sleep(0.1)
        return found


def policy(name: str) -> tuple[str, str]:
    return "--router-conditional-disagg-config", json.dumps({"policy": name})


def engine_flags(role: str, options: argparse.Namespace) -> list[str]:
    flags = ["--disaggregation-mode", role, "--max-model-len", str(max(options.lengths) + 8_192)]
    if role in ROLES:
        connector = {"kv_connector": "NixlConnector", "kv_role": ROLES[role], "kv_buffer_device": options.buffer,
                     "kv_connector_extra_config": json.loads(options.connector)}  # fmt: skip
        flags += ["--kv-transfer-config", json.dumps(connector)]
    if options.shape == "tiny":
        return [*flags, "--enforce-eager", "--kv-cache-memory-bytes", "64M", "--block-size", "32"]
    # vLLM refuses to start where less than this share of the GPU is free, although it is told how much it gets.
    return [*flags, "--kv-cache-memory-bytes", options.kv_bytes, "--gpu-memory-utilization", "0.3",
            "--max-num-seqs", "64", *options.vllm]  # fmt: skip


async def measure(engines: Arrangement, options: argparse.Namespace) -> None:
    wanted = options.sets.split(",")
    async with session() as http:
        if engines.split and "identical" in wanted:
            await identical(engines, http, options)
        if engines.split and "transfer" in wanted:
            await transfer(engines, http, options)
        if "streams" in wanted:
            await streams(engines, http, options)


async def identical(engines: Arrangement, http: aiohttp.ClientSession, options: argparse.Namespace) -> None:
    # All end with the same token: answers differ only by what is in the KV cache.
    prompts = [[*tokens(number, BLOCK * (1 + 7 * number % 29)), 777] for number in range(options.requests)]

    async def answers(url: str) -> list[str]:
        return [(await ask(http, url, prompt, 24)).text for prompt in prompts]

    await clear(http, engines.never)
    computed = await answers(engines.never)
    cached = await answers(engines.never)
    await clear(http, engines.never)
    (before, _), begun = engines.fetched(), time.monotonic()
    split = await answers(engines.always)
    took = time.monotonic() - begun
    after, _ = await engines.until_fetched(before + len(prompts))
    pairs = {"fetched_as_cached": (split, cached), "fetched_as_computed": (split, computed),
             "cached_as_computed": (cached, computed)}  # fmt: skip
    same = {name: sum(a == b for a, b in zip(*pair, strict=True)) for name, pair in pairs.items()}
    report("identical", options, requests=len(prompts), fetched=int(after - before), different_answers=len({*split}),
           seconds=took, **same)  # fmt: skip


async def transfer(engines: Arrangement, http: aiohttp.ClientSession, options: argparse.Namespace) -> None:
    seeds, rounds = count(10_000), 5
    for length in options.lengths:
        took: dict[str, list[float]] = {}
        for name, url in (("here", engines.never), ("split", engines.always)):
            await ask(http, url, tokens(next(seeds), length), 2)  # connects the engines, and compiles for this length
            before = engines.fetched()
            took[name] = [(await ask(http, url, tokens(next(seeds), length), 2)).ttft for _ in range(rounds)]
        after = await engines.until_fetched(before[0] + rounds)
        fetched, seconds = (now - then for now, then in zip(after, before, strict=True))
        moved = 1e3 * seconds / max(1, fetched)
        here, split = (percentile(took[name], 50) for name in ("here", "split"))
        report("transfer", options, prompt=length, fetched=int(fetched), ttft_here_ms=1e3 * here,
               ttft_split_ms=1e3 * split, handoff_ms_per_1k=1e6 * (split - here) / length,
               nixl_ms=moved, nixl_ms_per_1k=1e3 * moved / length)  # fmt: skip


async def streams(engines: Arrangement, http: aiohttp.ClientSession, options: argparse.Namespace) -> None:
    """Streams run alone for two seconds, then beside prompts that arrive at a fixed rate."""
    url, longest, seeds = engines.always, max(options.lengths), count(50_000)

    async def arrive() -> Answer:
        return await ask(http, url, tokens(next(seeds), longest), 2)

    await asyncio.gather(*(arrive() for _ in range(4)))
    times: list[list[float]] = [[] for _ in range(options.streams)]
    running = [asyncio.create_task(ask(http, url, tokens(next(seeds), 50), 8_000, each)) for each in times]
    while any(len(each) < 3 for each in times) or times[-1][-1] - times[-1][1] < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    begun = time.monotonic()
    arriving = []
    for _ in range(options.arrivals):
        arriving.append(asyncio.create_task(arrive()))
        await asyncio.sleep(options.interval)
    firsts = [answer.ttft for answer in await asyncio.gather(*arriving)]
    ended = time.monotonic()
    over = sum(task.done() for task in running)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    gaps = [(later, later - earlier) for each in times for earlier, later in pairwise(each[1:])]
    alone = [1e3 * gap for at, gap in gaps if at < begun]
    beside = [1e3 * gap for at, gap in gaps if begun <= at <= ended]
    figures = {f"itl_p{p}_ms": percentile(beside, p) for p in (50, 99, 99.9)}
    report("streams", options, arrangement="split" if engines.split else "whole", streams=len(running),
           ended_early=over, long_prompts=len(firsts), long_prompt=longest, interval_s=options.interval,
           seconds=ended - begun, tokens=len(beside), itl_alone_p50_ms=percentile(alone, 50),
           itl_alone_p99_ms=percentile(alone, 99), **figures, itl_most_ms=max(beside),
           over_50_ms=sum(gap > 50 for gap in beside) / len(beside), long_ttft_p50_ms=1e3 * percentile(firsts, 50),
           long_ttft_p99_ms=1e3 * percentile(firsts, 99), fetched=int(engines.fetched()[0]))  # fmt: skip


if __name__ == "__main__":
    main()
