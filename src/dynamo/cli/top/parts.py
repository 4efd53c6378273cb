"""Tables of `dynamo top` that are there only if the fleet has them: tiers, hand-offs, cached prefixes."""

from __future__ import annotations

from collections.abc import Iterator

from dynamo.cli.top.cells import milliseconds, number, printable, worker_name
from dynamo.frontend.fleet import Document

TIERS = ("WORKER", "TIER", "USED", ">BLOCKS", ">BYTES", ">FOUND", ">RESTORED", ">SAVED")
HANDOFFS = ("HAND-OFF", "PREFILL", "DECODE", "WHY", "STAGE", ">TOKENS", ">PREFILL", ">HAND-OFF")
PREFIXES = ("PREFIX", "MODEL", ">FROM", ">TOKENS", ">HELD", ">WORKERS")
DEEPEST = 8
HASH_DIGITS = 8


def tier_rows(fleet: Document) -> Iterator[list[str]]:
    for worker in fleet["workers"].values():
        for tier, row in worker.get("tiers", {}).items():
            looked = row.get("hits", 0) + row.get("misses", 0)
            yield [
                worker_name(f"{worker['worker_id']}/{worker['rank']}"),
                printable(tier),
                {True: "on", False: "off"}.get(row.get("used"), "-"),
                number(row["blocks"]),
                f"{number(row.get('bytes'))}/{number(row.get('limit_bytes'))}",
                f"{row['hits'] / looked:.0%}" if looked else "-",
                number(row.get("restored_tokens")),
                milliseconds(row["saved_seconds"] * 1000 if "saved_seconds" in row else None),
            ]


def handoff_rows(fleet: Document) -> Iterator[list[str]]:
    for row in sorted(fleet.get("handoffs", {}).values(), key=lambda row: -row["time"]):
        prefill = row.get("prefill")
        yield [
            printable(row["request_id"]),
            worker_name(prefill) if prefill else "-",
            worker_name(row["decode"]),
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
