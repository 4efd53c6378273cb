"""The report as one HTML page with plots, which needs nothing else to be shown."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from dynamo.lab.simulate.measured import Percentiles
from dynamo.lab.simulate.report import FleetReport, rows

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; }
th, td { padding: .2rem .8rem .2rem 0; text-align: right; font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; }
tr + tr { border-top: 1px solid color-mix(in srgb, currentColor 15%, transparent); }
svg { width: 100%; height: auto; margin: 1rem 0 2rem; }
text { fill: currentColor; font: 13px system-ui, sans-serif; }
"""
COLOURS = ("#3366cc", "#dd7722", "#2a9d55", "#aa3377", "#777777")
_ROW, _LEFT, _WIDTH = 22, 170, 760


def as_page(*reports: FleetReport) -> str:
    names = [report.name or "simulation" for report in reports]
    table = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows(reports))
    head = "".join(f"<th>{escape(name)}</th>" for name in ("", *names))
    plots = _plot("Time to first token, ms", names, [report.ttft_ms for report in reports])
    plots += _plot("Time between tokens, ms", names, [report.itl_ms for report in reports])
    plots += _plot("Whole request, ms", names, [report.e2e_ms for report in reports])
    return page("Simulation", f"{plots}<table><tr>{head}</tr>{table}</table>")


def page(title: str, body: str) -> str:
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style>"
        f"<h1>{title}</h1>{body}</html>\n"
    )


def _plot(title: str, names: Sequence[str], found: Sequence[Percentiles | None]) -> str:
    """Bars for the median, 90 % and 99 % of each report, on one scale."""
    figures = [(name, one) for name, one in zip(names, found, strict=True) if one]
    largest = max((one.p99 for _, one in figures), default=0.0) or 1.0
    bars = []
    for at, share in enumerate(("p50", "p90", "p99")):
        for number, (name, one) in enumerate(figures):
            y = (at * (len(figures) + 0.6) + number) * _ROW + 30
            value = getattr(one, share)
            width = max(1.0, (_WIDTH - _LEFT - 90) * value / largest)
            label = f"{share} {name}" if len(figures) > 1 else share
            bars.append(
                f'<text x="0" y="{y + 15:g}">{escape(label[:24])}</text>'
                f'<rect x="{_LEFT}" y="{y:g}" width="{width:.1f}" height="{_ROW - 5}" rx="3" '
                f'fill="{COLOURS[number % len(COLOURS)]}"/>'
                f'<text x="{_LEFT + width + 8:.1f}" y="{y + 15:g}">{value:,.1f}</text>'
            )
    height = 3 * (len(figures) + 0.6) * _ROW + 40
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height:g}" role="img" aria-label="{escape(title)}">'
        f'<text x="0" y="16" font-weight="bold">{escape(title)}</text>{"".join(bars)}</svg>'
    )
