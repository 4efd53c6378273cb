"""The report of a simulation: a struct, which is also its JSON, and the same as text, alone or beside another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from dynamo.lab.simulate.measured import Percentiles


class FleetReport(Struct, frozen=True, kw_only=True):
    name: str
    router_mode: str
    workers: int
    """Workers at the start; those that compute prompts for them are counted apart."""
    prefill_workers: int = 0
    rule_fallbacks: dict[str, int] = {}
    """Choices that the built-in rule made in the place of a rule from a file, by reason."""
    splits: dict[str, int] = {}
    """Requests by who computed the prompt, and why."""
    completed: int
    failed: int
    errors: dict[str, int]
    first_error: str = ""
    migrations: int
    input_tokens: int
    cached_tokens: int
    restored_tokens: dict[str, int] = {}
    """The cached tokens that came from a slower tier, by its name; without the tiers that no worker has."""
    output_tokens: int
    virtual_seconds: float
    """From the first request to the last answer."""
    wall_seconds: float
    worker_hours: float
    utilisation: float
    """The share of the workers' time in which they computed something."""
    busiest: float = 1.0
    """The time in which the busiest worker computed, as a multiple of the mean."""
    ttft_ms: Percentiles | None
    itl_ms: Percentiles | None
    tpot_ms: Percentiles | None
    """Mean time per output token after the first, of each request."""
    e2e_ms: Percentiles | None

    @property
    def prefix_reuse(self) -> float:
        return self.cached_tokens / self.input_tokens if self.input_tokens else 0.0

    @property
    def requests_per_second(self) -> float:
        return self.completed / self.virtual_seconds if self.virtual_seconds else 0.0

    @property
    def output_tokens_per_second(self) -> float:
        return self.output_tokens / self.virtual_seconds if self.virtual_seconds else 0.0


_CACHED = "prompt tokens found cached"
_PLACES = {"host": "host memory", "disk": "disk"}
_LINES: Sequence[tuple[str, Callable[[FleetReport], str]]] = (
    ("router", lambda r: r.router_mode),
    ("workers at the start", lambda r: str(r.workers)),
    ("prefill workers", lambda r: str(r.prefill_workers)),
    ("prompts computed elsewhere", lambda r: f"{sum(n for why, n in r.splits.items() if 'remote' in why):,}"),
    ("requests completed", lambda r: f"{r.completed:,}"),
    ("requests failed", lambda r: f"{r.failed:,}" + (f" ({_errors(r)})" if r.errors else "")),
    ("moved to another worker", lambda r: f"{r.migrations:,}"),
    ("virtual time, s", lambda r: f"{r.virtual_seconds:,.1f}"),
    ("requests/s", lambda r: f"{r.requests_per_second:,.2f}"),
    ("input tokens", lambda r: f"{r.input_tokens:,}"),
    ("output tokens", lambda r: f"{r.output_tokens:,}"),
    ("output tokens/s", lambda r: f"{r.output_tokens_per_second:,.0f}"),
    (_CACHED, lambda r: f"{100 * r.prefix_reuse:.1f} %"),
    ("worker-hours", lambda r: f"{r.worker_hours:,.2f}"),
    ("utilisation", lambda r: f"{100 * r.utilisation:.1f} %"),
    ("busiest worker, of the mean", lambda r: f"{r.busiest:.2f}"),
)
_TIMES: Sequence[tuple[str, Callable[[FleetReport], Percentiles | None]]] = (
    ("TTFT, ms", lambda r: r.ttft_ms),
    ("ITL, ms", lambda r: r.itl_ms),
    ("TPOT, ms", lambda r: r.tpot_ms),
    ("E2E, ms", lambda r: r.e2e_ms),
)


def rows(reports: Sequence[FleetReport]) -> list[list[str]]:
    """A title and one figure per report, line by line."""
    found = [[title, *(show(report) for report in reports)] for title, show in _lines(reports)]
    for title, of in _TIMES:
        times = [of(report) for report in reports]
        found += [
            [f"{title} {figure}", *(f"{getattr(one, figure):,.1f}" if one else "-" for one in times)]
            for figure in ("mean", "p50", "p90", "p99")
        ]
    return found


def _lines(reports: Sequence[FleetReport]) -> list[tuple[str, Callable[[FleetReport], str]]]:
    lines = list(_LINES)
    at = 1 + next(at for at, (title, _) in enumerate(lines) if title == _CACHED)
    tiers = {tier for report in reports for tier in report.restored_tokens}
    lines[at:at] = [
        (f"of which from {place}", partial(_restored, tier)) for tier, place in _PLACES.items() if tier in tiers
    ]
    return lines


def _restored(tier: str, report: FleetReport) -> str:
    return f"{100 * report.restored_tokens.get(tier, 0) / max(1, report.input_tokens):.1f} %"


def as_text(*reports: FleetReport) -> str:
    """One column per report."""
    head = [["", *(report.name or "simulation" for report in reports)]] if len(reports) > 1 else []
    return aligned(head + rows(reports))


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """The first column to the left, the others to the right."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if not column else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _errors(report: FleetReport) -> str:
    kinds = ", ".join(f"{count} {name}" for name, count in sorted(report.errors.items()))
    return f"{kinds}; the first: {report.first_error}" if report.first_error else kinds


def as_json(*reports: FleetReport) -> bytes:
    """An object, or a list of them where there are several; without the time it took to simulate."""
    shown = [_plain(report) for report in reports]
    encoded = msgspec.json.encode(shown[0] if len(shown) == 1 else shown)
    return msgspec.json.format(encoded, indent=2) + b"\n"


def _plain(report: FleetReport) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(report)
    del fields["wall_seconds"]  # the only figure that differs from run to run
    return fields | {
        "prefix_reuse": report.prefix_reuse,
        "requests_per_second": report.requests_per_second,
        "output_tokens_per_second": report.output_tokens_per_second,
    }
