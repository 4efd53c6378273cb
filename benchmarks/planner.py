"""The planner on day-shaped loads with bursts, simulated, beside fixed fleets and a schedule that knows the future.

`planner.py --shape day --seed 1`: one load; a day is compressed into `--hours`. `planner.py tuning`, `planner.py seen`
and `planner.py held-out`: a table of all loads of that set. The planner's rules were chosen with the first set, and the
second one was looked at meanwhile. With two cores a table of eight loads takes about ten minutes.
`planner.py quick-start --hours 0.5 --startup 2 --interval 2.5 --window 45`: loads that were held out for workers that
start in two seconds; `planner_processes.py` has the first two on real processes.
`planner.py --disagg` plans prefill and decode workers of one load, each by itself, beside the smallest fixed fleet of
both.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import pairwise

from msgspec import Struct

from dynamo.engines.mocker import MockerArgs
from dynamo.lab.simulate.planner import PlannedReport, simulate_planned
from dynamo.planner.config import PlannerConfig
from dynamo.simulate import SimulatedRequest, SimulationConfig

SHARE = 0.95
LOADS = {
    "tuning": [
        *((shape, seed) for shape in ("day", "office") for seed in (1, 2, 3, 4, 5, 6)),
        *((shape, seed) for shape in ("evening", "shifts") for seed in (1, 2, 3)),
    ],
    "seen": [
        ("day", 101), ("day", 102), ("office", 101), ("office", 102), ("evening", 101), ("evening", 102),
        ("shifts", 101), ("shifts", 102), ("day", 201), ("office", 201), ("evening", 201), ("shifts", 201),
        ("launch", 201), ("launch", 202), ("batches", 201), ("batches", 202),
    ],
    "held-out": [
        ("day", 301), ("day", 302), ("office", 301), ("shifts", 301), ("meals", 301), ("meals", 302),
        ("plateau", 301), ("plateau", 302),
    ],
    "quick-start": [
        ("day", 401), ("day", 402), ("office", 401), ("evening", 401), ("shifts", 401), ("launch", 401), ("meals", 401),
        ("plateau", 401),
    ],
}  # fmt: skip
SHAPES = ("day", "office", "evening", "shifts", "launch", "batches", "meals", "plateau")
_BURSTS = 4


def share_of_peak(shape: str, at: float) -> float:
    """`at` goes from 0 to 1.

    `day`: one wave. `office`: a quiet night, and two humps with lunch between them. `evening`: it rises all day, and
    falls within two hours. `shifts`: three levels with edges of a quarter of an hour. `launch`: a jump to the peak that
    halves every four hours. `batches`: four times a day it rises for five and a half hours and falls within half an
    hour. `meals`: three humps of different heights. `plateau`: up, nine hours at the peak, and down.
    """
    if shape == "day":
        wave: float = (0.5 - 0.5 * math.cos(2 * math.pi * at)) ** 1.5
        return 0.12 + 0.88 * wave
    if shape == "evening":
        return 0.1 + 0.9 * (at / 0.85 if at < 0.85 else max(0.0, 1 - (at - 0.85) / 0.08))
    if shape == "launch":
        left: float = 0.5 ** (max(0.0, at - 0.21) * 6)
        return 0.1 + 0.9 * min(1.0, max(0.0, (at - 0.2) / 0.01)) * left
    if shape == "meals":
        humps = ((0.3, 0.05, 0.5), (0.52, 0.06, 0.8), (0.8, 0.07, 1.0))
        return 0.1 + 0.9 * sum(
            height * math.exp(-(((at - middle) / width) ** 2) / 2) for middle, width, height in humps
        )
    if shape == "plateau":
        return 0.1 + 0.9 * min(1.0, max(0.0, (at - 0.25) / 0.125), max(0.0, (0.875 - at) / 0.125))
    if shape == "batches":
        phase = 4 * at % 1
        return 0.15 + 0.85 * min(phase / 0.92, (1 - phase) / 0.08)
    if shape == "shifts":
        level = 0.15
        for edge, change in ((0.25, 0.45), (0.55, 0.4), (0.8, -0.85)):
            level += change * min(1.0, max(0.0, (at - edge) / 0.01))
        return level
    morning, afternoon = (
        math.exp(-(((at - middle) / width) ** 2) / 2) for middle, width in ((0.42, 0.07), (0.63, 0.08))
    )
    return 0.08 + 0.92 * min(1.0, morning + 0.85 * afternoon)


class LoadShape(Struct, frozen=True, kw_only=True):
    """A day in `hours`, with four bursts of half the peak, each as long as 24 minutes of the day."""

    hours: float
    peak: float
    """Requests per second."""
    seed: int
    shape: str
    input_tokens: int = 1200
    """The median of prompts."""
    output_tokens: int = 150

    @property
    def seconds(self) -> float:
        return 3600 * self.hours

    def bursts(self) -> list[float]:
        rng = random.Random(self.seed)
        return [rng.uniform(0.05, 0.9) * self.seconds for _ in range(_BURSTS)]

    def rate(self, at: float) -> float:
        rate = self.peak * share_of_peak(self.shape, min(1.0, at / self.seconds))
        if any(start <= at < start + self.seconds / 60 for start in self.bursts()):
            rate += self.peak / 2
        return rate

    @property
    def changes(self) -> int:
        """How often the load begins to rise or to fall, by more than a tenth of the peak."""
        turns, direction, extreme = 0, 0, self.rate(0.0)
        for at in range(1, 2001):
            rate = self.rate(at / 2000 * self.seconds)
            if direction and (rate - extreme) * direction >= 0:
                extreme = rate
            elif abs(rate - extreme) > self.peak / 10:
                direction, extreme = (1 if rate > extreme else -1), rate
                turns += 1
        return turns


def day(load: LoadShape) -> Iterator[SimulatedRequest]:
    """Poisson arrivals."""
    rng = random.Random(load.seed)
    starts = [rng.uniform(0.05, 0.9) * load.seconds for _ in range(_BURSTS)]
    now = number = 0.0
    top = 1.6 * load.peak
    while True:
        now += rng.expovariate(top)
        if now >= load.seconds:
            return
        rate = load.peak * share_of_peak(load.shape, now / load.seconds)
        if any(start <= now < start + load.seconds / 60 for start in starts):
            rate += load.peak / 2
        if rng.random() < rate / top:
            number += 1
            yield SimulatedRequest(
                at=now,
                input_tokens=round(rng.lognormvariate(math.log(load.input_tokens), 0.6)) + 16,
                output_tokens=round(rng.lognormvariate(math.log(load.output_tokens), 0.5)) + 2,
                label=f"request {number:.0f}",
            )


class LoadRuns:
    """Runs of one load."""

    def __init__(self, load: LoadShape, asked: argparse.Namespace) -> None:
        self.load = load
        self._engine = MockerArgs(
            num_gpu_blocks=4096, block_size=64, max_num_seqs=64, speedup_ratio=0.1, startup_time=asked.startup
        )
        self._config = PlannerConfig(
            optimization_target="sla", ttft_ms=asked.ttft_ms, itl_ms=asked.itl_ms, max_gpu_budget=32,
            load_predictor=asked.predictor, startup_seconds=asked.startup, environment="virtual",
            load_adjustment_interval_seconds=asked.interval, throughput_adjustment_interval_seconds=asked.window,
            scale_down_step=4, mode="disagg" if asked.disagg else "agg",
        )  # fmt: skip

    def run(self, workers: int, prefill_workers: int = 0, **how: object) -> PlannedReport:
        fleet = SimulationConfig(workers=workers, prefill_workers=prefill_workers, engine=self._engine)
        return simulate_planned(fleet, self._config, lambda: day(self.load), **how)  # type: ignore[arg-type]

    def fixed(self, first: int = 1) -> tuple[int, PlannedReport]:
        """The smallest fleet that meets the targets."""
        for workers in range(max(1, first), 64):
            report = self.run(workers, fixed=True)
            if report.share_within_targets >= SHARE:
                return workers, report
        raise RuntimeError("no fleet of up to 63 workers meets the targets")

    def fixed_split(self, first: int = 2) -> tuple[int, int, PlannedReport]:
        """The smallest fleet of prefill and decode workers that meets the targets."""
        for total in range(max(2, first), 64):
            for prefill in range(1, total):
                report = self.run(total - prefill, prefill, fixed=True)
                if report.share_within_targets >= SHARE:
                    return prefill, total - prefill, report
        raise RuntimeError("no fleet of up to 63 workers meets the targets")

    def schedule(self, sustained: float) -> list[int]:
        """Workers at each tick, with the rate of every moment known; a worker begins to start in time."""
        ahead, interval = self._config.startup_seconds, self._config.load_adjustment_interval_seconds
        return [
            max(1, math.ceil(max(self.load.rate(at), self.load.rate(at + ahead)) / sustained))
            for at in (tick * interval for tick in range(math.ceil(self.load.seconds / interval)))
        ]

    def oracle(self) -> PlannedReport:
        """The schedule with the fewest workers that meets the targets, among several loads per worker."""
        report = None
        for sustained in (0.87, 0.82, 0.77, 0.72):
            plan = self.schedule(sustained)
            report = self.run(plan[0], schedule=plan)
            if report.share_within_targets >= SHARE:
                break
        assert report
        return report


def line(name: str, report: PlannedReport) -> str:
    return (
        f"{name:<22} {100 * report.share_within_targets:6.2f} % within targets, "
        f"{report.worker_seconds:9,.0f} worker-s, {report.failed} failed of {report.completed + report.failed:,}"
    )


def show_ticks(report: PlannedReport, interval: float) -> None:
    for at, (before, decision) in enumerate(pairwise(report.decisions), 1):
        if decision.decode and before.decode and decision.decode.workers != before.decode.workers:
            print(f"  {interval * at:6.0f} s {decision.decode.workers:3} {decision.decode.reason}")


def show_one(asked: argparse.Namespace) -> None:
    runs = LoadRuns(LoadShape(hours=asked.hours, peak=asked.peak, seed=asked.seed, shape=asked.shape), asked)
    begun = time.perf_counter()
    planned = runs.run(2)
    print(line(f"planner, {asked.predictor}", planned), f"({time.perf_counter() - begun:.0f} s)", flush=True)
    print(
        f"  {min(planned.workers)} to {max(planned.workers)} workers, {len(planned.changes)} changes, "
        f"{planned.reversals} reversals for {runs.load.changes} changes of load"
    )
    if asked.ticks:
        show_ticks(planned, asked.interval)
    workers, fixed = runs.fixed(asked.fixed)
    print(line(f"{workers} workers", fixed), flush=True)
    oracle = runs.oracle()
    print(line("oracle", oracle))
    print(f"saved of a fixed fleet: planner {saved(planned, fixed):.0f} %, oracle {saved(oracle, fixed):.0f} %")


def show_split(asked: argparse.Namespace) -> None:
    """Prefill and decode workers, each planned."""
    load = LoadShape(
        hours=asked.hours, peak=asked.peak, seed=asked.seed, shape=asked.shape, input_tokens=asked.input_tokens,
        output_tokens=asked.output_tokens,
    )  # fmt: skip
    runs = LoadRuns(load, asked)
    planned = runs.run(2, 1)
    print(line("planner, both roles", planned), flush=True)
    for name, workers in (("prefill", planned.prefill_workers), ("decode", planned.workers)):
        mean = sum(workers) / len(workers)
        print(f"  {min(workers)} to {max(workers)} {name} workers, {mean:.1f} on average")
    print(f"  {planned.reversals} reversals for {runs.load.changes} changes of load, in two roles")
    prefill, decode, fixed = runs.fixed_split(asked.fixed)
    print(line(f"{prefill} prefill, {decode} decode", fixed))
    print(f"saved of a fixed fleet: {saved(planned, fixed):.0f} %")


def saved(report: PlannedReport, fixed: PlannedReport) -> float:
    return 100 * (1 - report.worker_seconds / fixed.worker_seconds)


def row(shape: str, seed: int, asked: argparse.Namespace) -> str:
    runs = LoadRuns(LoadShape(hours=asked.hours, peak=asked.peak, seed=seed, shape=shape), asked)
    planned = runs.run(2)
    print(line(f"{shape} {seed}", planned), f"{planned.reversals} reversals", file=sys.stderr, flush=True)
    (workers, fixed), oracle = runs.fixed(asked.fixed or 5), runs.oracle()
    return (
        f"| {shape} | {seed} | {100 * planned.share_within_targets:.1f} % | {saved(planned, fixed):.0f} % "
        f"| {saved(oracle, fixed):.0f} % ({100 * oracle.share_within_targets:.1f} %) | {workers} "
        f"({100 * fixed.share_within_targets:.1f} %) | {planned.reversals} | {runs.load.changes} |"
    )


def show_all(asked: argparse.Namespace) -> None:
    """Loads side by side on several processes; a line on stderr for each that is done."""
    loads = LOADS[asked.loads][asked.first : asked.first + asked.count]
    begun = time.perf_counter()
    with ProcessPoolExecutor(asked.jobs) as pool:
        rows = [pool.submit(row, shape, seed, asked) for shape, seed in loads]
        for done, each in enumerate(as_completed(rows), 1):
            seconds = time.perf_counter() - begun
            print(f"{done} of {len(loads)} after {seconds:.0f} s: {each.result()}", file=sys.stderr, flush=True)
    print("| shape | seed | within both targets | saved | oracle saves | fixed | reversals | changes of load |")
    print("|---|---|---|---|---|---|---|---|")
    print(*(each.result() for each in rows), sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loads", nargs="?", choices=tuple(LOADS))
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--peak", type=float, default=5.0, help="requests per second")
    parser.add_argument("--shape", default="day", choices=SHAPES)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--predictor", default="arima", choices=("constant", "arima", "kalman"))
    parser.add_argument("--startup", type=float, default=30.0, help="seconds that a worker takes to start")
    parser.add_argument("--ttft-ms", type=float, default=4000.0)
    parser.add_argument("--itl-ms", type=float, default=250.0)
    parser.add_argument("--interval", type=float, default=5.0, help="load_adjustment_interval_seconds")
    parser.add_argument("--window", type=float, default=90.0, help="throughput_adjustment_interval_seconds")
    parser.add_argument("--fixed", type=int, default=0, help="try no smaller fixed fleet than this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="loads at the same time, for a table")
    parser.add_argument("--first", type=int, default=0, help="of a table only the loads from this one on, from 0")
    parser.add_argument("--count", type=int, default=1000, help="and as many of them")
    parser.add_argument("--ticks", action="store_true", help="print every change")
    parser.add_argument("--disagg", action="store_true", help="one load, with prefill and decode workers")
    parser.add_argument("--input-tokens", type=int, default=1200, help="median of its prompts")
    parser.add_argument("--output-tokens", type=int, default=150)
    asked = parser.parse_args()
    if asked.loads and asked.disagg:
        parser.error("--disagg is for one load")
    (show_all if asked.loads else show_split if asked.disagg else show_one)(asked)


if __name__ == "__main__":
    main()
