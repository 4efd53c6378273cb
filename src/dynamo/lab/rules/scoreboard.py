"""Every rule on the same traffic and the same simulated fleet, beside the best that any could find cached."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape

import msgspec
from msgspec import Struct, structs

from dynamo.lab.simulate.page import page
from dynamo.lab.simulate.report import aligned
from dynamo.lab.simulate.simulation import SimulationConfig, simulate
from dynamo.lab.simulate.traffic import SimulatedRequest

BUILT_IN = "built-in"


class Score(Struct, frozen=True, kw_only=True):
    """One rule on one trace."""

    trace: str
    rule: str
    optimum: float
    """The share of the prompts' tokens that endless caches would hold."""
    cached: float
    ttft_ms: float
    ttft_p99_ms: float
    itl_ms: float
    e2e_ms: float
    busy: float
    busiest: float
    requests: int
    failed: int
    fallbacks: int = 0
    """Choices that the built-in rule made because this one failed."""


def scored(
    trace: str, config: SimulationConfig, traffic: Callable[[], Iterable[SimulatedRequest]], rule: str, optimum: float
) -> Score:
    own = structs.replace(config.routing, rule=None if rule == BUILT_IN else rule)
    report = simulate(structs.replace(config, routing=own), traffic)
    ttft, itl, e2e = report.ttft_ms, report.itl_ms, report.e2e_ms
    return Score(
        trace=trace,
        rule=rule,
        optimum=optimum,
        cached=report.prefix_reuse,
        ttft_ms=ttft.mean if ttft else 0.0,
        ttft_p99_ms=ttft.p99 if ttft else 0.0,
        itl_ms=itl.mean if itl else 0.0,
        e2e_ms=e2e.mean if e2e else 0.0,
        busy=report.utilisation,
        busiest=report.busiest,
        requests=report.completed,
        failed=report.failed,
        fallbacks=sum(report.rule_fallbacks.values()),
    )


def optimum(traffic: Iterable[SimulatedRequest], block_size: int) -> float:
    """The largest share of the prompts' tokens that can be found cached, whatever the rule and the caches.

    Each different block has to be computed once, and so has the last token of every prompt. Blocks of the engine that
    are smaller than those of the trace can be found where those begin alike, and only there.
    """
    seen: set[int] = set()
    usable = found = tokens = 0
    for request in traffic:
        tokens += request.input_tokens
        whole = min(len(request.block_ids) * request.block_size, request.input_tokens - 1) // block_size
        chain = 0
        hit = True
        for at in range(whole):
            chain = hash((chain, request.block_ids[at * block_size // request.block_size], at))
            if chain not in seen:
                hit = False
                seen.add(chain)
            found += hit
        usable += whole
    return found * block_size / tokens if tokens else 0.0


_COLUMNS: Sequence[tuple[str, Callable[[Score], str]]] = (
    ("rule", lambda s: s.rule),
    ("cached", lambda s: f"{100 * s.cached:.1f} %"),
    ("of the optimum", lambda s: f"{s.cached / s.optimum:.3f}" if s.optimum else "-"),
    ("TTFT, ms", lambda s: f"{s.ttft_ms:,.1f}"),
    ("p99", lambda s: f"{s.ttft_p99_ms:,.0f}"),
    ("ITL, ms", lambda s: f"{s.itl_ms:.1f}"),
    ("E2E, ms", lambda s: f"{s.e2e_ms:,.0f}"),
    ("busy", lambda s: f"{100 * s.busy:.0f} %"),
    ("busiest", lambda s: f"{s.busiest:.2f}"),
    ("failed", lambda s: f"{s.failed}" + (f", rule failed {s.fallbacks} times" if s.fallbacks else "")),
)


def scores_text(scores: Sequence[Score]) -> str:
    """A table per trace, the lowest mean time to the first token first."""
    return "\n\n".join(f"{title}\n{aligned(table)}" for title, table in _tables(scores))


def scores_page(scores: Sequence[Score]) -> str:
    parts = []
    for title, (head, *rows) in _tables(scores):
        cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
        parts.append(f"<h2>{escape(title)}</h2><table><tr>{cells}</tr>{body}</table>")
    return page("Router rules", "".join(parts))


def scores_json(scores: Sequence[Score]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(scores), indent=2) + b"\n"


def _tables(scores: Sequence[Score]) -> list[tuple[str, list[list[str]]]]:
    tables = []
    for trace in dict.fromkeys(score.trace for score in scores):
        here = sorted((score for score in scores if score.trace == trace), key=lambda score: score.ttft_ms)
        title = f"{trace}: {here[0].requests + here[0].failed:,} requests, optimum {100 * here[0].optimum:.1f} % cached"
        head = [name for name, _ in _COLUMNS]
        tables.append((title, [head, *([show(score) for _, show in _COLUMNS] for score in here)]))
    return tables
