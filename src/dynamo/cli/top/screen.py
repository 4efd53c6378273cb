"""The fleet as lines of text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dynamo.frontend.fleet import Document
from dynamo.protocols.worker_name import worker_name

LONGEST = 28
"""Characters of a name."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Columns as wide as their longest cell; `>` before a title aligns it right."""
    titles = [title.removeprefix(">") for title in head]
    cells = [titles, *rows]
    widths = [max(len(row[at]) for row in cells) for at in range(len(head))]
    return [
        "  ".join(
            cell.rjust(width) if title.startswith(">") else cell.ljust(width)
            for cell, width, title in zip(row, widths, head, strict=True)
        ).rstrip()
        for row in cells
    ]


def printable(text: Any, longest: int = LONGEST) -> str:
    """Names come from outside: nothing in them may move the cursor."""
    line = "".join(character if character.isprintable() else "?" for character in str(text))
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def named(key: str) -> str:
    """A worker by its name, given its id or `id/rank`."""
    id, _, rank = key.partition("/")
    short = worker_name(int(id)) if id.isascii() and id.isdecimal() and len(id) < 21 else printable(id)
    return short + (f"/{printable(rank)}" if rank and rank != "0" else "")


def number(value: int | None) -> str:
    return "-" if value is None else str(value)


def milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}ms" if value < 1000 else f"{value / 1000:.1f}s"


TIERS = ("WORKER", "TIER", "USED", ">BLOCKS", ">BYTES", ">FOUND", ">RESTORED", ">SAVED")
SESSIONS = ("SESSION", "MODEL", "WORKER", ">TURNS", ">PAUSE", ">PROMPT", "CACHED PER TURN")
HANDOFFS = ("HAND-OFF", "PREFILL", "DECODE", "WHY", "STAGE", ">TOKENS", ">PREFILL", ">HAND-OFF")
PREFIXES = ("PREFIX", "MODEL", ">FROM", ">TOKENS", ">HELD", ">WORKERS")
DEEPEST = 8
HASH_DIGITS = 8


def tier_rows(fleet: Document) -> Iterator[list[str]]:
    for worker in fleet["workers"].values():
        for tier, row in worker.get("tiers", {}).items():
            looked = row.get("hits", 0) + row.get("misses", 0)
            yield [
                named(f"{worker['worker_id']}/{worker['rank']}"),
                printable(tier),
                {True: "on", False: "off"}.get(row.get("used"), "-"),
                number(row["blocks"]),
                f"{number(row.get('bytes'))}/{number(row.get('limit_bytes'))}",
                f"{row['hits'] / looked:.0%}" if looked else "-",
                number(row.get("restored_tokens")),
                milliseconds(row["saved_seconds"] * 1000 if "saved_seconds" in row else None),
            ]


def session_rows(fleet: Document) -> Iterator[list[str]]:
    for row in sorted(fleet.get("sessions", {}).values(), key=lambda row: -row["time"]):
        pause = row.get("pause_s")
        yield [
            printable(row["id"]),
            printable(row["model"]),
            named(row["worker_id"]) if "worker_id" in row else "-",
            number(row["turns"]),
            "-" if pause is None else milliseconds(pause * 1000),
            number(row["prompt_tokens"]),
            " ".join(f"{share:d}%" for share in row["cached_percent"]),
        ]


def handoff_rows(fleet: Document) -> Iterator[list[str]]:
    for row in sorted(fleet.get("handoffs", {}).values(), key=lambda row: -row["time"]):
        prefill = row.get("prefill")
        yield [
            printable(row["request_id"]),
            named(prefill) if prefill else "-",
            named(row["decode"]),
            f"{'split' if prefill else 'not split'}: {printable(row['reason'])}",
            printable(row["stage"]),
            number(row["uncached_tokens"]),
            milliseconds(row.get("prefill_ms")),
            milliseconds(row.get("handoff_ms")),
        ]


def prefix_rows(fleet: Document) -> Iterator[list[str]]:
    """Parents before their children, and among siblings the most held first."""
    prefixes: Document = fleet.get("prefixes", {})
    below: dict[str, list[str]] = {}
    for key, row in sorted(prefixes.items(), key=lambda item: item[1]["held"]):
        parent = row.get("parent", "")
        below.setdefault(parent if parent in prefixes else "", []).append(key)
    waiting = [(key, 0) for key in below.get("", ())]
    while waiting:
        key, depth = waiting.pop()
        row = prefixes[key]
        tier = f" ({printable(row['tier'])})" if "tier" in row else ""
        yield [
            "  " * min(depth, DEEPEST) + printable(key.rpartition("/")[2][:HASH_DIGITS]) + tier,
            printable(row["model"]),
            number(row["begin"] * row["tokens"] // max(1, row["blocks"])),
            number(row["tokens"]),
            number(row["held"]),
            number(row["holders"]),
        ]
        waiting += [(child, depth + 1) for child in below.pop(key, ())]


def planner_lines(fleet: Document) -> list[str]:
    """The last sentence of each planner."""
    return [
        f"planner: {printable(row['sentences'][-1]['text'], 600)}" + (" (silent)" if row["state"] == "silent" else "")
        for row in fleet.get("planners", {}).values()
        if row["sentences"]
    ]


WORKERS = (
    "WORKER", "MODEL", "ROLE", "HEALTH", ">REQUESTS", ">BLOCKS", ">PREFILL", ">CACHED", ">TTFT", ">ITL", "VERSION",
)  # fmt: skip
REQUESTS = ("REQUEST", "MODEL", "STAGE", "WORKER", ">IN", ">OUT", ">AGE")
DECISIONS = ("DECISION", "MODEL", "WORKER", "WHY")


def lines(fleet: Document, now: float, width: int, height: int | None = None, note: str = "") -> list[str]:
    """`height` None shows everything. Each table gets a share of the lines; what is left out is counted."""
    rest = None if height is None else max(3, height - 6)
    tables = [
        table(WORKERS, [_worker(row) for _, row in sorted(fleet["workers"].items(), key=_by_model)]),
        table(TIERS, tier_rows(fleet)),
        table(REQUESTS, [_request(id, row, now) for id, row in fleet["requests"].items()]),
        table(SESSIONS, session_rows(fleet)),
        table(HANDOFFS, handoff_rows(fleet)),
        table(PREFIXES, prefix_rows(fleet)),
        table(DECISIONS, [_decision(row) for _, row in sorted(fleet["decisions"].items(), key=_newest_first)]),
    ]
    tables = [each for each in tables if len(each) > 1]
    shown = [_summary(fleet, note), *planner_lines(fleet)]
    for place, each in enumerate(tables, 1):
        room = None if rest is None else max(2, rest if place == len(tables) else rest * 3 // 5)
        part = each if room is None or len(each) <= room else [*each[: room - 1], f"… {len(each) - room + 1} more"]
        shown += ["", *part]
        rest = None if rest is None else max(0, rest - len(part))
    return [line[:width] for line in shown[:height]]


def _summary(fleet: Document, note: str) -> str:
    models, workers = fleet["models"].values(), fleet["workers"].values()
    ready = sum(row["health"] == "ready" for row in workers)
    blocks = sum(model.get("prompt_blocks", 0) for model in models)
    cached = sum(model.get("overlap_blocks", 0) for model in models)
    facts = [
        f"dynamo {printable(fleet['version'])}",
        note,
        f"{ready} of {len(workers)} workers ready",
        f"{sum(model.get('running', 0) for model in models)} requests running",
        f"{sum(model.get('waiting', 0) for model in models)} waiting",
        f"{cached / blocks:.0%} of prompts cached" if blocks else "",
    ]
    return "   ".join(fact for fact in facts if fact)


def _worker(row: Document) -> list[str]:
    total = row.get("total_blocks")
    blocks = number(row.get("active_blocks"))
    return [
        named(f"{row['worker_id']}/{row['rank']}"),
        printable(row["model"]),
        printable(row["role"]),
        printable(row["health"]),
        number(row["requests"]),
        f"{blocks}/{total}" if total and blocks != "-" else blocks,
        number(row.get("prefill_tokens")),
        number(row.get("cached_blocks")),
        milliseconds(row.get("ttft_ms")),
        milliseconds(row.get("itl_ms")),
        printable(row.get("version", "-")),
    ]


def _request(id: str, row: Document, now: float) -> list[str]:
    return [
        printable(id),
        printable(row["model"]),
        printable(row["stage"]),
        ",".join(named(worker) for worker in row["workers"]) or "-",
        number(row["input_tokens"]),
        number(row["output_tokens"]),
        f"{max(0, now - row['started']):.0f}s",
    ]


def _decision(row: Document) -> list[str]:
    chosen = next((one for one in row.get("candidates", ()) if one["worker"] == row["worker"]), None)
    if row.get("pinned"):
        why = "named by the client"
    elif chosen is None:
        why = f"{printable(row['mode'])}, of {row['considered']}, {row['in_flight']} requests there"
    else:
        cached = f"{chosen['cached_blocks']:g}/{row['prompt_blocks']} blocks cached"
        why = f"of {row['considered']}: {cached}, cost {chosen['cost']:g}"
    return [printable(row["request_id"]), printable(row["model"]), named(row["worker"]), why]


def _by_model(item: tuple[str, Document]) -> tuple[str, str]:
    return item[1]["model"], item[0]


def _newest_first(item: tuple[str, Document]) -> int:
    return -int(item[0])
