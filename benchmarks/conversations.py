"""Conversations through real processes: what is found cached, TTFT and how evenly the workers are used.

usage: python benchmarks/conversations.py [--peer PYTHON] [--rounds 2] [--only TEXT] [--shared] [--frontends] [--idle]

The variants are those of kv_placement.py: 40 conversations over 10 system prompts, 5 turns of 50 tokens answered with
32, a canned history, staggered starts, exponential thinking time. All are drawn from a seed, so every side and mode is
asked the same. Each run has fresh processes: a frontend, and one process with all simulated workers. Sides and modes
take turns, forwards in one round and backwards in the next.

--shared: one system prompt of 6,000 tokens for all, 8 workers, our modes beside each other. --frontends: bursts of ten
conversations, one frontend beside two that tell each other their bookings; each turn goes to the other frontend.
--idle: TTFT of single requests, nothing else running.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import uvloop
from msgspec import Struct
from tokenizers import Tokenizer

from figures import percentile, table
from kv_fleet import Prompt
from kv_placement import BLOCK, VARIANTS, Variant, optimum
from load import Reply, connect, http_request
from processes import Stack
from words import MODEL, Prompts, make_model

USER, OUT = 50, 32
IDLE = (64, 512, 1500, 4000)
BURST = Variant("bursts of 10 conversations, 1500-token systems, 8 workers", 16384, convs=80, workers=8, stagger=0.0)


@dataclass(frozen=True)
class Setup:
    """Whose processes, how they choose and how many frontends there are."""

    side: str
    python: str
    mode: str
    frontends: int = 1

    def __str__(self) -> str:
        return f"{self.side} {self.mode}" + (f", {self.frontends} frontends" if self.frontends > 1 else "")


class Talk(Struct):
    start: float
    bodies: list[bytes]
    think: list[float]


class Run(Struct):
    """One run, as --json writes it. Times in milliseconds."""

    variant: str
    setup: str
    round: int
    cached: float
    optimum: float
    ttft_mean: float
    ttft_p50: float
    ttft_p99: float
    uneven_tokens: float
    """Prompt and output tokens of the worker that got most, against the mean."""
    uneven_requests: float
    """Requests at once on the fullest worker against the mean, averaged over time."""
    requests: int
    errors: int
    load: float


class Workload:
    """What is asked, and what of it could be found cached at best."""

    def __init__(
        self,
        variant: Variant,
        seed: int,
        tokenizer: Tokenizer,
        *,
        burst: int = 0,
        block: int = BLOCK,
        told: Sequence[str] = ("worker_id",),
    ) -> None:
        draw, texts = random.Random(seed), Prompts(seed)
        systems = [texts.next(variant.system_tokens) for _ in range(variant.systems)]
        histories = []
        for number in range(variant.convs):
            turns = [(texts.next(USER), texts.next(OUT)) for _ in range(variant.turns)]
            think = [draw.expovariate(1 / variant.think) for _ in turns]
            histories.append((systems[number % variant.systems], turns, think))
        draw.shuffle(histories)
        self.talks: list[Talk] = []
        prompts = []
        for number, (system, turns, think) in enumerate(histories):
            messages = [{"role": "system", "content": system}]
            bodies = []
            for asked, answered in turns:
                messages.append({"role": "user", "content": asked})
                bodies.append(_request(messages, told))
                prompts.append(Prompt.of(tokenizer.encode(_rendered(messages)).ids, block))
                messages.append({"role": "assistant", "content": answered})
            start = number // burst if burst else number * variant.stagger
            self.talks.append(Talk(float(start), bodies, think))
        self.prompt_tokens = sum(prompt.length for prompt in prompts)
        self.optimum = optimum(prompts, block)


def _request(messages: list[dict[str, str]], told: Sequence[str] = ("worker_id",)) -> bytes:
    asked = {
        "model": MODEL,
        "messages": messages,
        "max_tokens": OUT,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "nvext": {"extra_fields": list(told)},
    }
    return http_request(json.dumps(asked, separators=(",", ":")).encode())


def _rendered(messages: list[dict[str, str]]) -> str:
    told = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
    return f"{told}<|im_start|>assistant\n"


async def converse(urls: Sequence[str], talks: list[Talk]) -> list[Reply]:
    replies: list[Reply] = []

    async def talk(number: int, one: Talk) -> None:
        await asyncio.sleep(one.start)
        connections = [await connect(url) for url in urls]
        for turn, (body, think) in enumerate(zip(one.bodies, one.think, strict=True)):
            at = (number + turn) % len(urls)
            if not connections[at].open:
                connections[at] = await connect(urls[at])
            replies.append(await connections[at].ask(body, stream=True))
            await asyncio.sleep(think)
        for connection in connections:
            connection.close()

    await asyncio.gather(*(talk(number, one) for number, one in enumerate(talks)))
    return replies


def uneven_requests(replies: Sequence[Reply], workers: int) -> float:
    """The fullest worker's requests against the mean, weighted by time."""
    changes = sorted([(r.sent, 1, r.worker) for r in replies] + [(r.ended, -1, r.worker) for r in replies])
    now: Counter[int] = Counter()
    fullest = every = 0.0
    for (when, by, worker), (until, _, _) in itertools.pairwise(changes):
        now[worker] += by
        fullest += (until - when) * max(now.values())
        every += (until - when) * now.total()
    return fullest * workers / every if every else float("nan")


def uneven_tokens(replies: Sequence[Reply], workers: int) -> float:
    tokens: Counter[int] = Counter()
    for reply in replies:
        tokens[reply.worker] += reply.prompt_tokens + reply.tokens
    return max(tokens.values()) * workers / tokens.total() if tokens else float("nan")


def start(stack: Stack, model: Path, variant: Variant, setup: Setup) -> list[str]:
    """Fresh processes; returns the URLs of the frontends."""
    urls = []
    sync = ["--router-replica-sync"] if setup.frontends > 1 else []
    size = ("--num-gpu-blocks-override", str(variant.blocks), "--block-size", str(BLOCK))
    stack.mocker(model, MODEL, "--num-workers", str(variant.workers), "--speedup-ratio", f"{variant.speed:g}", *size)
    for number in range(setup.frontends):
        stack.frontend("--router-mode", setup.mode, *sync, name=f"frontend{number}")
        stack.until("/v1/models", f'"{MODEL}"'.encode())
        urls.append(stack.url)
    # Listed is not yet settled: the other workers follow, and both builds still have start-up work to do.
    time.sleep(2)
    return urls


def one_run(folder: Path, model: Path, variant: Variant, setup: Setup, number: int, work: Workload) -> Run:
    with Stack(folder, setup.python, ours=setup.side == "ours") as stack:
        urls = start(stack, model, variant, setup)
        replies = uvloop.run(converse(urls, work.talks))
    good = [reply for reply in replies if reply.error is None]
    for error in {reply.error for reply in replies if reply.error}:
        print(f"    {error}", file=sys.stderr)
    asked = sum(reply.prompt_tokens for reply in good)
    if len(good) == len(replies) and asked != work.prompt_tokens:
        print(f"    {setup} counted {asked} prompt tokens, not {work.prompt_tokens}", file=sys.stderr)
    ttft = [1e3 * (reply.first - reply.sent) for reply in good]
    return Run(
        variant=variant.name,
        setup=str(setup),
        round=number,
        cached=100 * sum(reply.cached_tokens for reply in good) / max(1, asked),
        optimum=100 * work.optimum,
        ttft_mean=statistics.fmean(ttft),
        ttft_p50=percentile(ttft, 50),
        ttft_p99=percentile(ttft, 99),
        uneven_tokens=uneven_tokens(good, variant.workers),
        uneven_requests=uneven_requests(good, variant.workers),
        requests=len(good),
        errors=len(replies) - len(good),
        load=os.getloadavg()[0],
    )


def idle(folder: Path, model: Path, setups: Sequence[Setup], times: int = 7) -> str:
    """Median TTFT of requests that are alone, prompts never seen before."""

    async def ask(url: str, size: int) -> float:
        connection = await connect(url)
        texts = Prompts(size)
        took = []
        for _ in range(times):
            reply = await connection.ask(_request([{"role": "user", "content": texts.next(size)}]), stream=True)
            took.append(1e3 * (reply.first - reply.sent))
        connection.close()
        return statistics.median(took)

    rows = []
    for setup in setups:
        with Stack(folder / f"idle {setup}", setup.python, ours=setup.side == "ours") as stack:
            url = start(stack, model, VARIANTS[0], setup)[0]
            rows.append([str(setup), *(f"{uvloop.run(ask(url, size)):.1f}" for size in IDLE)])
    return table(["idle TTFT ms, prompt tokens", *map(str, IDLE)], rows)


def report(runs: Sequence[Run]) -> str:
    found: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        found.setdefault((run.variant, run.setup), []).append(run)
    rows = []
    for (variant, setup), some in found.items():
        base = found.get((variant, f"{setup.split()[0]} round-robin"))
        mean = statistics.fmean(run.ttft_mean for run in some)
        ratio = f"{mean / statistics.fmean(run.ttft_mean for run in base):.2f}" if base else "–"
        names = ("cached", "ttft_mean", "ttft_p50", "ttft_p99", "uneven_tokens", "uneven_requests")
        cells = [_span([getattr(run, name) for run in some], 2 if name.startswith("uneven") else 1) for name in names]
        cells.insert(2, ratio)
        errors = sum(run.errors for run in some)
        rows.append([variant, f"{some[0].optimum:.1f}", setup, *cells, str(len(some)), str(errors)])
    head = ["variant", "optimum %", "", "cached %", "TTFT mean", "/ round-robin", "p50", "p99", "tokens max/mean"]
    return table([*head, "requests max/mean", "runs", "errors"], rows)


def _span(values: Sequence[float], digits: int) -> str:
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return low if low == high else f"{low}–{high}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="interpreter that runs our processes (this one)")
    parser.add_argument(
        "--peer", default=os.environ.get("PEER_PYTHON"), help="interpreter that has ai-dynamo (PEER_PYTHON)"
    )
    parser.add_argument("--modes", default="kv,round-robin", help="router modes (%(default)s)")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--only", default="", help="only the variants whose name has this in it")
    parser.add_argument("--shared", action="store_true", help="one system prompt for all traffic")
    parser.add_argument("--frontends", action="store_true", help="one frontend against two")
    parser.add_argument("--idle", action="store_true", help="TTFT of single requests")
    parser.add_argument("--json", type=Path, help="append every run to this file, a line each")
    options = parser.parse_args()
    modes = options.modes.split(",")
    sides = [("ours", options.python)] + ([("peer", options.peer)] if options.peer else [])
    setups = [Setup(side, python, mode) for mode in modes for side, python in sides]
    variants, burst = [variant for variant in VARIANTS[:5] if options.only in variant.name], 0
    if options.shared:
        variants = [variant for variant in (VARIANTS[5], VARIANTS[8]) if options.only in variant.name]
        setups = [Setup(*sides[0], mode) for mode in ("kv", "round-robin", "least-loaded")]
        setups += [Setup(*side, "kv") for side in sides[1:]]
    elif options.frontends:
        variants, burst = [BURST], 10
        setups = [Setup(*side, "kv", count) for side in sides for count in (1, 2)]
    runs: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        folder = Path(place)
        model = make_model(folder / "model")
        if options.idle:
            print(idle(folder, model, [replace(setup, mode="round-robin") for setup in setups[: len(sides)]]))
            return
        tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        for variant in variants:
            work = Workload(variant, options.seed, tokenizer, burst=burst)
            for number in range(options.rounds):
                for setup in setups if number % 2 == 0 else setups[::-1]:
                    run = one_run(folder / f"{len(runs)}", model, variant, setup, number, work)
                    runs.append(run)
                    told = f"cached {run.cached:.1f} of {run.optimum:.1f} %, TTFT {run.ttft_mean:.1f}"
                    told += f", p99 {run.ttft_p99:.1f}, load {run.load:.1f}"
                    print(f"{variant.name}: {setup}: {told}", file=sys.stderr, flush=True)
                    if options.json:
                        with options.json.open("ab") as file:
                            file.write(msgspec.json.encode(run) + b"\n")
    print(report(runs))
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    print(f"\n{time.strftime('%Y-%m-%d %H:%M')}, seed {options.seed}, {load}")


if __name__ == "__main__":
    main()
