"""How many workers a traffic needs: a search over simulations for the smallest fleet that meets the targets."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Sequence
from html import escape

import msgspec
from msgspec import Struct, structs

from dynamo.lab.simulate import virtual_time
from dynamo.lab.simulate.page import COLOURS, page
from dynamo.lab.simulate.report import FleetReport, aligned
from dynamo.lab.simulate.simulation import ServiceLevel, SimulationConfig, start_simulation
from dynamo.lab.simulate.traffic import SimulatedRequest

Traffic = Callable[[], Iterable[SimulatedRequest]]


class Targets(Struct, frozen=True, kw_only=True):
    ttft_ms: float
    itl_ms: float
    share: float = 0.95
    """The share of requests that should meet both."""


class PlannedFleet(Struct, frozen=True, kw_only=True):
    """One fleet that was simulated."""

    settings: str
    workers: int
    """Those that decode, or do everything."""
    prefill_workers: int = 0
    share_within: float
    enough: bool
    report: FleetReport

    @property
    def total(self) -> int:
        return self.workers + self.prefill_workers

    @property
    def size(self) -> str:
        return f"{self.prefill_workers}+{self.workers}" if self.prefill_workers else str(self.workers)


class FleetPlan(Struct, frozen=True, kw_only=True):
    targets: Targets
    fleets: tuple[PlannedFleet, ...]
    """By settings, then by number of prefill workers and of others."""

    @property
    def best(self) -> PlannedFleet | None:
        """The fewest workers that are enough; of several settings, the one with the shortest mean TTFT."""
        enough = [each for each in self.fleets if each.enough]
        return min(enough, key=lambda each: (each.total, _mean_ttft(each)), default=None)


def plan_fleet(
    settings: Sequence[SimulationConfig],
    traffic: Traffic,
    targets: Targets,
    most: int,
    progress: Callable[[PlannedFleet], None] = lambda fleet: None,
) -> FleetPlan:
    """For each of the settings, the fewest workers up to `most` that meet the targets, and one fewer.

    Settings with prefill workers are searched for the best number of these too.
    """
    found: list[PlannedFleet] = []
    for config in settings:
        trials = _Trials(config, traffic, targets, progress)
        if config.prefill_workers:
            _search_splits(trials, most)
        else:
            _search(trials, most)
        found += trials.tried()
    return FleetPlan(targets=targets, fleets=tuple(found))


class _Trials:
    """Simulates each fleet once."""

    def __init__(
        self, config: SimulationConfig, traffic: Traffic, targets: Targets, progress: Callable[[PlannedFleet], None]
    ) -> None:
        self._config = config
        self._traffic = traffic
        self._targets = targets
        self._progress = progress
        self._tried: dict[tuple[int, int], PlannedFleet] = {}

    def enough(self, workers: int, prefill_workers: int = 0) -> bool:
        fleet = self._tried.get((prefill_workers, workers))
        if fleet is None:
            config = structs.replace(self._config, workers=workers, prefill_workers=prefill_workers)
            fleet = self._tried[prefill_workers, workers] = _try(config, self._traffic, self._targets)
            self._progress(fleet)
        return fleet.enough

    def tried(self) -> list[PlannedFleet]:
        return [self._tried[size] for size in sorted(self._tried)]


def _search(trials: _Trials, most: int, prefill_workers: int = 0) -> int | None:
    """The fewest workers that are enough; None if `most` are not."""
    high = 1
    while not trials.enough(high, prefill_workers):
        if high == most:
            return None
        high = min(2 * high, most)
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if trials.enough(middle, prefill_workers) else (middle, high)
    return high


def _search_splits(trials: _Trials, most: int) -> None:
    """Follow the smallest fleets that are enough: with one more prefill worker, no more decode workers are needed."""
    decode = _search(trials, most - 1, 1) if most > 1 else None
    if decode is None:
        return
    prefill, best = 1, 1 + decode
    while prefill + 1 < best:
        prefill += 1
        while decode > 1 and trials.enough(decode - 1, prefill):
            decode -= 1
            best = min(best, prefill + decode)


def _try(config: SimulationConfig, traffic: Traffic, targets: Targets) -> PlannedFleet:
    wall = time.perf_counter()

    async def work() -> PlannedFleet:
        async with start_simulation(config) as simulation:
            level = simulation.measured = ServiceLevel(targets.ttft_ms / 1000, targets.itl_ms / 1000)
            begun = asyncio.get_running_loop().time()
            await simulation.replay(traffic())
            return PlannedFleet(
                settings=config.name,
                workers=config.workers,
                prefill_workers=config.prefill_workers,
                share_within=level.share_within,
                enough=level.share_within >= targets.share,
                report=simulation.report(begun, time.perf_counter() - wall),
            )

    random.seed(config.seed)
    return virtual_time.run(work())


def _mean_ttft(fleet: PlannedFleet) -> float:
    return fleet.report.ttft_ms.mean if fleet.report.ttft_ms else 0.0


def plan_rows(plan: FleetPlan) -> list[list[str]]:
    head = [
        "settings",
        "workers",
        "within targets",
        "TTFT p50, ms",
        "p99",
        "ITL p50, ms",
        "p99",
        "worker-hours",
        "cached",
    ]
    rows = [head]
    for fleet in plan.fleets:
        report = fleet.report
        times = [
            f"{getattr(found, figure):,.0f}" if found else "-"
            for found in (report.ttft_ms, report.itl_ms)
            for figure in ("p50", "p99")
        ]
        share = f"{100 * fleet.share_within:.1f} %" + (" ✓" if fleet.enough else "  ")
        rows.append(
            [fleet.settings, fleet.size, share, *times, f"{report.worker_hours:,.2f}",
             f"{100 * report.prefix_reuse:.0f} %"]
        )  # fmt: skip
    return rows


def answer(plan: FleetPlan) -> str:
    targets = plan.targets
    wanted = f"{100 * targets.share:g} % of requests within TTFT {targets.ttft_ms:g} ms and ITL {targets.itl_ms:g} ms"
    if best := plan.best:
        split = f"{best.prefill_workers} prefill and {best.workers} decode"
        return f"{split if best.prefill_workers else best.workers} workers with {best.settings}: {wanted}"
    largest = max(plan.fleets, key=lambda fleet: fleet.total)
    why, report = "", largest.report
    if report.failed:
        why = f"; {report.failed:,} of {report.completed + report.failed:,} failed, the first: {report.first_error}"
    return f"no fleet of up to {largest.total} workers has {wanted}{why}"


def plan_text(plan: FleetPlan) -> str:
    return f"{aligned(plan_rows(plan))}\n\n{answer(plan)}"


def plan_json(plan: FleetPlan) -> bytes:
    """Without the time that simulating took: the same input gives the same bytes."""
    shown = msgspec.to_builtins(plan)
    for fleet in shown["fleets"]:
        del fleet["report"]["wall_seconds"]
    shown["workers"] = plan.best.workers if plan.best else None
    shown["prefill_workers"] = plan.best.prefill_workers if plan.best else None
    shown["settings"] = plan.best.settings if plan.best else None
    return msgspec.json.format(msgspec.json.encode(shown), indent=2) + b"\n"


def plan_page(plan: FleetPlan) -> str:
    head, *rows = plan_rows(plan)
    cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    table = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return page("Plan", f"<p>{escape(answer(plan))}</p>{_frontier(plan)}<table><tr>{cells}</tr>{table}</table>")


def _frontier(plan: FleetPlan) -> str:
    """The share within the targets by number of workers in all, one line per settings."""
    left, top, width, height = 60, 30, 640, 240
    most = max(fleet.total for fleet in plan.fleets)

    def place(workers: float, share: float) -> tuple[float, float]:
        return left + width * workers / most, top + height * (1 - share)

    parts = []
    for share in (0.0, 0.5, plan.targets.share, 1.0):
        x, y = place(0, share)
        parts.append(
            f'<line x1="{x:g}" x2="{left + width}" y1="{y:.1f}" y2="{y:.1f}" stroke="currentColor" opacity=".3"/>'
        )
        parts.append(f'<text x="0" y="{y + 4:.1f}">{100 * share:g} %</text>')
    names = list(dict.fromkeys(fleet.settings for fleet in plan.fleets))
    for number, name in enumerate(names):
        colour = COLOURS[number % len(COLOURS)]
        fleets = sorted((fleet for fleet in plan.fleets if fleet.settings == name), key=lambda fleet: fleet.total)
        points = [place(total, share) for total, share in _best_shares(fleets).items()]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for x, y in points]
        below = top + height + 44 + 18 * number
        parts.append(f'<circle cx="{left + 5}" cy="{below - 4}" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{left + 16}" y="{below}">{escape(name)}</text>')
    for workers in sorted({fleet.total for fleet in plan.fleets}):
        parts.append(f'<text x="{place(workers, 0)[0] - 4:.1f}" y="{top + height + 18}">{workers}</text>')
    title = "Share of requests within the targets, by number of workers"
    return (
        f'<svg viewBox="0 0 760 {top + height + 36 + 18 * len(names)}" role="img" aria-label="{title}">'
        f'<text x="0" y="16" font-weight="bold">{title}</text>{"".join(parts)}</svg>'
    )


def _best_shares(fleets: Iterable[PlannedFleet]) -> dict[int, float]:
    """By number of workers; of several splits, that of the best."""
    shares: dict[int, float] = {}
    for fleet in fleets:
        shares[fleet.total] = max(fleet.share_within, shares.get(fleet.total, 0.0))
    return shares
