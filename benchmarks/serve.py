"""CPU cost of a token and of a request: a frontend and a simulated worker as processes, under a closed loop of clients.

Two regimes. "fast": the worker takes no time, so tokens of a stream pile up and several are sent in one event. "paced":
the worker steps about every 6 ms, so each token is an event of its own. The column ev/token shows which it was.

With --peer, ai-dynamo of another interpreter runs under the same load, in rounds that alternate with ours, and each
figure is shown as ours, peer and ours/peer, medians over the rounds.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import uvloop
from msgspec import Struct

from figures import Figures, Meter, median, short, table
from load import Users, requests
from processes import Stack
from prompts import MODEL, Prompts, make_model

SPEEDUP = {"fast": "1000000", "paced": "1"}
CELLS = {
    "fast": "64x64:1,64x64:16,64x64:64,64x64:64:full,2048x32:1,2048x32:64",
    "paced": "64x64:64,64x256:64",
}
COLUMNS = {
    "CPU µs/token": "frontend_us_per_token",
    "CPU ms/req": "frontend_ms_per_request",
    "worker ms/req": "worker_ms_per_request",
    "req/s": "requests_per_second",
    "TTFT p50": "ttft_p50",
    "p99": "ttft_p99",
    "ITL p50": "itl_p50",
    "p99 ": "itl_p99",
    "RSS MB": "frontend_rss_mb",
    "ev/token": "events_per_token",
    "reads/token": "reads_per_token",
    "client CPU %": "client_cpu_percent",
}


class Cell(Struct, frozen=True):
    """Prompt and answer length in tokens, clients at once, streamed or whole."""

    prompt: int
    output: int
    concurrency: int
    stream: bool = True

    @classmethod
    def parse(cls, text: str) -> Cell:
        shape, concurrency, *mode = text.split(":")
        prompt, _, output = shape.partition("x")
        return cls(int(prompt), int(output), int(concurrency), mode != ["full"])

    def __str__(self) -> str:
        return f"{self.prompt}x{self.output} c={self.concurrency} {'stream' if self.stream else 'full'}"


class Side(Struct, frozen=True):
    name: str
    python: str
    frontend_flags: list[str]


class Row(Struct):
    """One measurement, as --json writes it."""

    regime: str
    cell: str
    side: str
    round: int
    figures: Figures


async def measure(stack: Stack, cell: Cell, seconds: float, seed: int, *, quickack: bool) -> Figures:
    """A short run to warm up and to estimate the rate, then the measured one."""
    frontend, worker = stack.children["frontend"], stack.children["mocker"]
    prompts = Prompts(seed)
    users = Users(stack.url, quickack=quickack)
    await users.open(cell.concurrency)
    try:
        least = 2 * cell.concurrency
        warm = requests(prompts, max(10, least), cell.prompt, cell.output, stream=cell.stream)
        began = time.monotonic()
        await users.run(warm, stream=cell.stream)
        rate = len(warm) / (time.monotonic() - began)
        count = int(min(10_000, max(20, least, rate * seconds)))
        row = requests(prompts, count, cell.prompt, cell.output, stream=cell.stream)
        meter = Meter(frontend, worker)
        return meter.figures(await users.run(row, stream=cell.stream, until=time.monotonic() + 5 * seconds))
    finally:
        users.close()


def run(options: argparse.Namespace, sides: list[Side], folder: Path) -> list[Row]:
    model = make_model(folder / "model")
    rows: list[Row] = []
    seed = 0
    for number in range(options.rounds):
        for regime in options.regimes.split(","):
            cells = [Cell.parse(text) for text in getattr(options, regime).split(",")]
            for side in sides if number % 2 == 0 else sides[::-1]:
                place = folder / f"{side.name}-{regime}-{number}"
                with Stack(place, side.python, ours=side.name == "ours", environ={"DYN_LOG": options.log}) as stack:
                    stack.frontend("--router-mode", options.router_mode, *side.frontend_flags)
                    workers = ("--speedup-ratio", SPEEDUP[regime], "--num-workers", str(options.workers))
                    stack.mocker(model, MODEL, *workers)
                    stack.until("/v1/models", f'"{MODEL}"'.encode())
                    # Both builds still have start-up work to do for a second after the model is listed.
                    time.sleep(1)
                    for cell in cells:
                        seed += 1
                        figures = uvloop.run(
                            measure(stack, cell, options.seconds, seed, quickack=not options.no_quickack)
                        )
                        rows.append(Row(regime, str(cell), side.name, number, figures))
                        line = f"round {number + 1} {regime:>5} {side.name:>4} {cell!s:>24}: "
                        line += f"{figures.frontend_us_per_token:.1f} µs/token, {figures.errors} errors"
                        print(line, file=sys.stderr, flush=True)
                        if figures.first_error:
                            print(f"    {figures.first_error}", file=sys.stderr, flush=True)
    return rows


def report(rows: list[Row], sides: list[Side]) -> str:
    found: dict[tuple[str, str], dict[str, list[Figures]]] = {}
    for row in rows:
        found.setdefault((row.regime, row.cell), {}).setdefault(row.side, []).append(row.figures)
    lines = []
    for (regime, cell), by_side in found.items():
        medians = {name: median(rounds) for name, rounds in by_side.items()}
        for name, figures in medians.items():
            values = [short(getattr(figures, field)) for field in COLUMNS.values()]
            lines.append([f"{regime} {cell}", name, *values, str(figures.requests), str(figures.errors)])
        if len(sides) == 2:
            ours, peer = (medians[side.name] for side in sides)
            ratios = [ratio(getattr(ours, field), getattr(peer, field)) for field in COLUMNS.values()]
            lines.append([f"{regime} {cell}", "ratio", *ratios, "", ""])
    return table(["regime P×T", "side", *COLUMNS, "requests", "errors"], lines)


def ratio(ours: float, peer: float) -> str:
    return f"{ours / peer:.2f}×" if peer and ours == ours and peer == peer else "–"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="interpreter that runs our processes (this one)")
    parser.add_argument(
        "--peer",
        default=os.environ.get("PEER_PYTHON"),
        help="interpreter that has ai-dynamo (PEER_PYTHON)",
    )
    parser.add_argument("--ours-args", default="", help="more flags for our frontend, as one argument")
    parser.add_argument(
        "--peer-args", default="--tokenizer fastokens", help="more flags for the peer's ('%(default)s', its fastest)"
    )
    parser.add_argument("--regimes", default="fast,paced")
    parser.add_argument("--fast", default=CELLS["fast"], help="cells PxT:clients[:full] (%(default)s)")
    parser.add_argument("--paced", default=CELLS["paced"], help="cells of the paced regime (%(default)s)")
    parser.add_argument("--seconds", type=float, default=1.5, help="length of one measurement (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--router-mode", default="round-robin")
    parser.add_argument("--log", default="warn", help="DYN_LOG of all processes (%(default)s)")
    parser.add_argument("--no-quickack", action="store_true", help="let the client delay its ACKs, as most clients do")
    parser.add_argument("--json", type=Path, help="write every measurement to this file")
    options = parser.parse_args()
    sides = [Side("ours", options.python, shlex.split(options.ours_args))]
    if options.peer:
        sides.append(Side("peer", options.peer, shlex.split(options.peer_args)))
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        rows = run(options, sides, Path(folder))
    print(report(rows, sides))
    taken = f"{time.strftime('%Y-%m-%d %H:%M')}, {options.rounds} rounds of {options.seconds:g} s"
    load = f"load average at the end {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    print(f"\n{taken}, {time.monotonic() - began:.0f} s in all; {load}")
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(rows), indent=1))


if __name__ == "__main__":
    main()
