"""Computes the figures of a measurement from replies and CPU clocks, and prints tables."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from msgspec import Struct, structs

from load import Reply
from processes import Child


class Figures(Struct, kw_only=True):
    """One cell of the matrix, measured once; times of clients in milliseconds."""

    frontend_us_per_token: float
    frontend_ms_per_request: float
    worker_ms_per_request: float
    requests_per_second: float
    ttft_p50: float
    ttft_p99: float
    itl_p50: float
    itl_p99: float
    frontend_rss_mb: float
    client_cpu_percent: float
    """Percent of one core: near 100 the client is the bottleneck."""
    events_per_token: float
    reads_per_token: float
    requests: int
    errors: int
    first_error: str | None = None


class Meter:
    """Measures the CPU time of a frontend, its worker and this client, from its construction on."""

    def __init__(self, frontend: Child, worker: Child) -> None:
        self._frontend = frontend
        self._worker = worker
        self._before = self._clocks()

    def _clocks(self) -> tuple[float, float, float, float]:
        return self._frontend.cpu(), self._worker.cpu(), time.process_time(), time.monotonic()

    def figures(self, replies: Sequence[Reply]) -> Figures:
        frontend, worker, client, wall = (now - then for now, then in zip(self._clocks(), self._before, strict=True))
        good = [reply for reply in replies if reply.error is None]
        bad = [reply.error for reply in replies if reply.error]
        count = max(1, len(good))
        tokens = max(1, sum(reply.tokens for reply in good))
        ttft = [1e3 * (reply.first - reply.sent) for reply in good]
        gaps = [1e3 * gap for reply in good for gap in reply.gaps]
        return Figures(
            frontend_us_per_token=1e6 * frontend / tokens,
            frontend_ms_per_request=1e3 * frontend / count,
            worker_ms_per_request=1e3 * worker / count,
            requests_per_second=len(good) / wall,
            ttft_p50=percentile(ttft, 50),
            ttft_p99=percentile(ttft, 99),
            itl_p50=percentile(gaps, 50),
            itl_p99=percentile(gaps, 99),
            frontend_rss_mb=self._frontend.rss() / 1e6,
            client_cpu_percent=100 * client / wall,
            events_per_token=sum(reply.events for reply in good) / tokens,
            reads_per_token=sum(reply.reads for reply in good) / tokens,
            requests=len(good),
            errors=len(bad),
            first_error=bad[0] if bad else None,
        )


def percentile(values: Sequence[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else float("nan")


def median(rounds: Sequence[Figures]) -> Figures:
    """Each figure's median over the rounds; errors and requests are added up."""
    merged: dict[str, object] = {}
    for field in structs.fields(Figures):
        values = [getattr(one, field.name) for one in rounds]
        if field.name in ("requests", "errors"):
            merged[field.name] = sum(values)
        elif field.name == "first_error":
            merged[field.name] = next((value for value in values if value), None)
        else:
            merged[field.name] = statistics.median(values)
    return Figures(**merged)  # type: ignore[arg-type]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown that also reads well in a terminal."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = ["| " + " | ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) + " |"
             for row in (head, *rows)]  # fmt: skip
    lines.insert(1, "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|")
    return "\n".join(lines)


def short(value: float) -> str:
    """With about three significant digits."""
    if value != value:
        return "–"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
