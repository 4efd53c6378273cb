"""The planner on a day-shaped load with bursts, simulated, beside the smallest fixed fleet that meets the targets.

`python benchmarks/planner.py [--hours 1] [--peak 5] [--shape day] [--seed 1]`: a day is compressed into `--hours`.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Iterator

from dynamo.engines.mocker import MockerArgs
from dynamo.planner.config import PlannerConfig
from dynamo.planner.simulated import PlannedReport, simulate_planned
from dynamo.simulate import SimulatedRequest, SimulationConfig

SHARE = 0.95


def share_of_peak(shape: str, at: float) -> float:
    """`day`: one wave; `office`: a quiet night, and two humps with lunch between them. `at` goes from 0 to 1."""
    if shape == "day":
        wave: float = (0.5 - 0.5 * math.cos(2 * math.pi * at)) ** 1.5
        return 0.12 + 0.88 * wave
    morning, afternoon = (
        math.exp(-(((at - middle) / width) ** 2) / 2) for middle, width in ((0.42, 0.07), (0.63, 0.08))
    )
    return 0.08 + 0.92 * min(1.0, morning + 0.85 * afternoon)


def day(hours: float, peak: float, seed: int = 1, bursts: int = 4, shape: str = "day") -> Iterator[SimulatedRequest]:
    """Poisson arrivals, with bursts of half the peak on top."""
    rng = random.Random(seed)
    seconds = hours * 3600
    starts = [rng.uniform(0.05, 0.9) * seconds for _ in range(bursts)]
    burst_seconds = seconds / 60
    now = number = 0.0
    top = 1.6 * peak
    while True:
        now += rng.expovariate(top)
        if now >= seconds:
            return
        rate = peak * share_of_peak(shape, now / seconds)
        if any(start <= now < start + burst_seconds for start in starts):
            rate += peak / 2
        if rng.random() < rate / top:
            number += 1
            yield SimulatedRequest(
                at=now,
                input_tokens=round(rng.lognormvariate(math.log(1200), 0.6)) + 16,
                output_tokens=round(rng.lognormvariate(math.log(150), 0.5)) + 2,
                label=f"request {number:.0f}",
            )


def line(name: str, report: PlannedReport) -> str:
    return (
        f"{name:<22} {100 * report.share_within_targets:6.2f} % within targets, "
        f"{report.worker_seconds:9,.0f} worker-s, {report.failed} failed of {report.completed + report.failed:,}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--peak", type=float, default=5.0, help="requests per second")
    parser.add_argument("--shape", default="day", choices=("day", "office"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--predictor", default="arima", choices=("constant", "arima", "kalman"))
    parser.add_argument("--startup", type=float, default=30.0, help="seconds that a worker takes to start")
    parser.add_argument("--ttft-ms", type=float, default=4000.0)
    parser.add_argument("--itl-ms", type=float, default=250.0)
    parser.add_argument("--window", type=float, default=120.0, help="throughput_adjustment_interval_seconds")
    parser.add_argument("--fixed", type=int, default=0, help="try no smaller fixed fleet than this")
    parser.add_argument("--ticks", action="store_true", help="print every change")
    asked = parser.parse_args()
    engine = MockerArgs(
        num_gpu_blocks=4096, block_size=64, max_num_seqs=64, speedup_ratio=0.1, startup_time=asked.startup
    )
    config = PlannerConfig(
        optimization_target="sla", ttft_ms=asked.ttft_ms, itl_ms=asked.itl_ms, max_gpu_budget=32,
        load_predictor=asked.predictor, startup_seconds=asked.startup, environment="virtual",
        throughput_adjustment_interval_seconds=asked.window,
    )  # fmt: skip

    def run(workers: int, fixed: bool) -> PlannedReport:
        return simulate_planned(
            SimulationConfig(workers=workers, engine=engine),
            config,
            lambda: day(asked.hours, asked.peak, asked.seed, shape=asked.shape),
            fixed=fixed,
        )

    begun = time.perf_counter()
    planned = run(2, fixed=False)
    print(line(f"planner, {asked.predictor}", planned), f"({time.perf_counter() - begun:.0f} s)", flush=True)
    print(
        f"  {min(planned.workers)} to {max(planned.workers)} workers, {len(planned.changes)} changes, "
        f"{planned.reversals} reversals"
    )
    if asked.ticks:
        for at, decision in enumerate(planned.decisions):
            if decision.decode and (not at or decision.decode.workers != planned.workers[at - 1]):
                print(f"  {5 * at:6} s {decision.decode.workers:3} {decision.decode.reason}")
    workers = max(1, asked.fixed)
    while True:
        fixed = run(workers, fixed=True)
        print(line(f"{workers} workers", fixed), flush=True)
        if fixed.share_within_targets >= SHARE:
            break
        workers += 1
    print(f"the planner uses {100 * (1 - planned.worker_seconds / fixed.worker_seconds):.0f} % fewer worker-seconds")


if __name__ == "__main__":
    main()
