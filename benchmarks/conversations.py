"""Conversations through real processes: share of cached tokens, TTFT and how evenly the workers are used.

usage: python benchmarks/conversations.py [--peer PYTHON] [--seeds 2001-2004] [--modes kv,round-robin] [--only TEXT]
       [--shared | --frontends | --idle] [--journal FILE [--report]]

The variants are those of kv_placement.py: 40 conversations over 10 system prompts, 5 turns of 50 tokens answered with
32, a canned history, staggered starts, exponential thinking time. All are drawn from a seed, so every side and mode
gets the same requests. Each run has fresh processes: a frontend, and one process with all simulated workers. A mode is
run with all seeds and variants before the next begins; within it the sides alternate, and so does the one that goes
first.

--shared: one system prompt of 6,000 tokens for all, 8 workers; compares our modes. --frontends: bursts of ten
conversations; compares one frontend with two that exchange their bookings, where turns alternate between the two.
--idle: TTFT of single requests, nothing else running.
--journal: each finished run is appended to the file, and a run that is in the file is not repeated; the tables cover
the whole file. --report prints them and runs nothing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import uvloop
from msgspec import Struct
from tokenizers import Tokenizer

from figures import percentile, table
from kv_placement import BLOCK, VARIANTS, Variant
from load import connect
from processes import Stack, machine_busy, metric_total
from prompts import MODEL, Prompts, make_model
from workload import Workload, converse, request, uneven_requests, uneven_tokens

IDLE = (64, 512, 1500, 4000)
BURST = Variant("bursts of 10 conversations, 1500-token systems, 8 workers", 16384, convs=80, workers=8, stagger=0.0)
SHARED = [variant for variant in VARIANTS if "shared" in variant.name]


@dataclass(frozen=True)
class Setup:
    """Whose processes, the router mode and the number of frontends."""

    side: str
    python: str
    mode: str
    frontends: int = 1

    def __str__(self) -> str:
        return f"{self.side} {self.mode}" + (f", {self.frontends} frontends" if self.frontends > 1 else "")


class Run(Struct):
    """One run, a line of the journal. Times in milliseconds."""

    variant: str
    setup: str
    seed: int
    cached: float
    optimum: float
    ttft_mean: float
    ttft_p50: float
    ttft_p99: float
    uneven_tokens: float
    uneven_requests: float
    requests: int
    errors: int
    seconds: float
    load: float
    """The load average before it began."""
    others: float
    """Cores used by other processes during the run."""
    ahead: float = 0.0
    """Prompt tokens computed ahead on idle workers, in percent of all."""

    @property
    def key(self) -> tuple[str, str, int]:
        return self.variant, self.setup, self.seed


def start(stack: Stack, model: Path, variant: Variant, setup: Setup) -> list[str]:
    """Fresh processes; returns the URLs of the frontends."""
    urls = []
    sync = ["--router-replica-sync"] if setup.frontends > 1 else []
    size = ("--num-gpu-blocks-override", str(variant.blocks), "--block-size", str(BLOCK))
    # ai-dynamo's mocker reserves no blocks, as vLLM; ours has the older, published default.
    reserve = ("--watermark", "0") if setup.side == "ours" else ()
    speed = ("--speedup-ratio", f"{variant.speed:g}")
    stack.mocker(model, MODEL, "--num-workers", str(variant.workers), *speed, *size, *reserve)
    for number in range(setup.frontends):
        stack.frontend("--router-mode", setup.mode, *sync, name=f"frontend{number}")
        stack.until("/v1/models", f'"{MODEL}"'.encode())
        urls.append(stack.url)
    # The model is listed before all workers are, and both builds still have start-up work to do.
    time.sleep(2)
    return urls


def one_run(folder: Path, model: Path, variant: Variant, setup: Setup, seed: int, work: Workload) -> Run:
    load, begun, busy, own = os.getloadavg()[0], time.monotonic(), machine_busy(), time.process_time()
    with Stack(folder, setup.python, ours=setup.side == "ours") as stack:
        urls = start(stack, model, variant, setup)
        replies = uvloop.run(converse(urls, work.conversations))
        ahead = BLOCK * sum(metric_total(url, "dynamo_component_router_copied_blocks_total") for url in urls)
        used = sum(child.cpu() for child in stack.children.values()) + time.process_time() - own
        others = (machine_busy() - busy - used) / (time.monotonic() - begun)
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
        seed=seed,
        cached=100 * sum(reply.cached_tokens for reply in good) / max(1, asked),
        optimum=100 * work.optimum,
        ttft_mean=statistics.fmean(ttft),
        ttft_p50=percentile(ttft, 50),
        ttft_p99=percentile(ttft, 99),
        uneven_tokens=uneven_tokens(good, variant.workers),
        uneven_requests=uneven_requests(good, variant.workers),
        requests=len(good),
        errors=len(replies) - len(good),
        seconds=time.monotonic() - begun,
        load=load,
        others=max(0.0, others),
        ahead=100 * ahead / max(1, asked),
    )


def idle(folder: Path, model: Path, setups: Sequence[Setup], times: int = 7) -> str:
    """Median TTFT of single requests with new prompts."""

    async def ask(url: str, size: int) -> float:
        connection = await connect(url)
        texts = Prompts(size)
        took = []
        for _ in range(times):
            reply = await connection.ask(request([{"role": "user", "content": texts.next(size)}]), stream=True)
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
    """A table of every setup, then comparisons of pairs, seed by seed."""
    found: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        found.setdefault(run.variant, {}).setdefault(run.setup, []).append(run)
    rows = []
    for variant, setups in found.items():
        for setup, some in setups.items():
            names = (
                "optimum",
                "cached",
                "ahead",
                "ttft_mean",
                "ttft_p50",
                "ttft_p99",
                "uneven_tokens",
                "uneven_requests",
            )
            cells = [_span([getattr(run, name) for run in some], 2 if "uneven" in name else 1) for name in names]
            counts = [len(some), sum(run.errors for run in some)]
            cells += [*map(str, counts), _span([run.load for run in some], 1), _span([run.others for run in some], 2)]
            rows.append([variant, setup, *cells])
    head = [
        "variant",
        "",
        "optimum %",
        "cached %",
        "ahead %",
        "TTFT mean",
        "p50",
        "p99",
        "tokens max/mean",
        "requests max/mean",
    ]
    return f"{table([*head, 'runs', 'errors', 'load', 'others'], rows)}\n\n{_paired(found)}"


def _paired(found: dict[str, dict[str, list[Run]]]) -> str:
    rows = []
    for variant, setups in found.items():
        for one, other in _PAIRS:
            first, second = ({run.seed: run for run in setups.get(name, [])} for name in (one, other))
            pairs = [(first[seed], second[seed]) for seed in sorted(first.keys() & second.keys())]
            if not pairs:
                continue
            cells = [_mean([a.cached - b.cached for a, b in pairs], 1)]
            for name in ("ttft_mean", "ttft_p99", "uneven_tokens", "uneven_requests"):
                ratios = [getattr(a, name) / getattr(b, name) for a, b in pairs]
                cells.append(f"{_mean(ratios, 3)} ({sum(ratio < 1 for ratio in ratios)})")
            rows.append([variant, f"{one} ÷ {other}", str(len(pairs)), *cells])
    head = ["variant", "seed by seed, mean ± standard error (how often lower)", "seeds", "cached, points more"]
    return table([*head, "TTFT mean", "p99", "tokens max/mean", "requests max/mean"], rows)


_PAIRS = [
    ("ours kv", "peer kv"),
    ("ours round-robin", "peer round-robin"),
    ("ours kv", "ours round-robin"),
    ("peer kv", "peer round-robin"),
    ("ours kv", "ours least-loaded"),
    ("ours kv, 2 frontends", "ours kv"),
    ("peer kv, 2 frontends", "peer kv"),
]


def _span(values: Sequence[float], digits: int) -> str:
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return low if low == high else f"{statistics.fmean(values):.{digits}f} ({low}–{high})"


def _mean(values: Sequence[float], digits: int) -> str:
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{statistics.fmean(values):.{digits}f} ± {error:.{digits}f}"


def in_turn(
    phases: Sequence[Sequence[Setup]], seeds: Sequence[int], variants: Sequence[Variant]
) -> Iterator[tuple[Variant, int, Setup]]:
    """All runs in order; the setup that went first goes last the next time."""
    for setups in phases:
        for at, seed in enumerate(seeds):
            for place, variant in enumerate(variants):
                for setup in setups if (at + place) % 2 == 0 else setups[::-1]:
                    yield variant, seed, setup


def seed_list(text: str) -> list[int]:
    """`2001-2004,3000` are five."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="interpreter that runs our processes (this one)")
    parser.add_argument(
        "--peer", default=os.environ.get("PEER_PYTHON"), help="interpreter that has ai-dynamo (PEER_PYTHON)"
    )
    parser.add_argument("--modes", default="kv,round-robin", help="router modes (%(default)s)")
    parser.add_argument("--seeds", type=seed_list, default=[42], help="such as 2001-2004 (42)")
    parser.add_argument("--only", default="", help="only the variants whose name has this in it")
    parser.add_argument("--shared", action="store_true", help="one system prompt for all traffic")
    parser.add_argument("--frontends", action="store_true", help="one frontend against two")
    parser.add_argument("--idle", action="store_true", help="TTFT of single requests")
    parser.add_argument("--journal", type=Path, help="append every run to this file, and skip the runs in it")
    parser.add_argument("--report", action="store_true", help="print the tables of the journal and run nothing")
    options = parser.parse_args()
    sides = [("ours", options.python)] + ([("peer", options.peer)] if options.peer else [])
    variants, burst = [variant for variant in VARIANTS[:5] if options.only in variant.name], 0
    phases = [[Setup(*side, mode) for side in sides] for mode in options.modes.split(",")]
    if options.shared:
        variants = [variant for variant in SHARED if options.only in variant.name]
        phases = [[Setup(*sides[0], mode) for mode in ("kv", "round-robin", "least-loaded")]]
        phases[0] += [Setup(*side, "kv") for side in sides[1:]]
    elif options.frontends:
        variants, burst = [BURST], 10
        phases = [[Setup(*side, "kv", count) for count in (1, 2)] for side in sides]
    runs: list[Run] = []
    if options.journal and options.journal.exists():
        runs = [msgspec.json.decode(line, type=Run) for line in options.journal.read_bytes().splitlines()]
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        folder = Path(place)
        model = make_model(folder / "model")
        if options.idle:
            print(idle(folder, model, [replace(setup, mode="round-robin") for setup in phases[0]]))
            return
        tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        done = {run.key for run in runs}
        plan = [
            one for one in in_turn(phases, options.seeds, variants) if (one[0].name, str(one[2]), one[1]) not in done
        ]
        last: tuple[Variant, int] | None = None
        for number, (variant, seed, setup) in enumerate([] if options.report else plan):
            if last != (variant, seed):
                last, work = (variant, seed), Workload(variant, seed, tokenizer, burst=burst)
            run = one_run(folder / str(number), model, variant, setup, seed, work)
            runs.append(run)
            line = f"cached {run.cached:.1f} of {run.optimum:.1f} %, TTFT {run.ttft_mean:.1f}, p99 {run.ttft_p99:.1f}"
            line += f"; {run.seconds:.0f} s, load {run.load:.1f}, others {run.others:.2f}"
            print(f"{number + 1}/{len(plan)} {variant.name}, seed {seed}: {setup}: {line}", file=sys.stderr, flush=True)
            if options.journal:
                with options.journal.open("ab") as file:
                    file.write(msgspec.json.encode(run) + b"\n")
    print(report(runs))
    print(f"\n{time.strftime('%Y-%m-%d %H:%M')}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
