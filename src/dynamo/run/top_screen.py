"""The fleet as lines of text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dynamo.frontend.fleet.merge_patch import Document

WORKERS = ("WORKER", "MODEL", "ROLE", "HEALTH", ">REQUESTS", ">BLOCKS", ">PREFILL", ">CACHED", ">TTFT", ">ITL")
REQUESTS = ("REQUEST", "MODEL", "STAGE", "WORKER", ">IN", ">OUT", ">AGE")
DECISIONS = ("DECISION", "MODEL", "WORKER", "WHY")
LONGEST = 28
"""Characters of a name."""


def lines(fleet: Document, now: float, width: int, height: int | None = None, note: str = "") -> list[str]:
    """`height` None shows everything. Each table gets a share of the lines; what is left out is counted."""
    rest = None if height is None else max(3, height - 6)
    tables = [
        _table(WORKERS, [_worker(row) for _, row in sorted(fleet["workers"].items(), key=_by_model)]),
        _table(REQUESTS, [_request(id, row, now) for id, row in fleet["requests"].items()]),
        _table(DECISIONS, [_decision(row) for _, row in sorted(fleet["decisions"].items(), key=_newest_first)]),
    ]
    shown = [_summary(fleet, note)]
    for left, table in zip((2, 1, 0), tables, strict=True):
        if len(table) == 1:
            continue
        room = None if rest is None else max(2, rest if left == 0 else rest * 3 // 5)
        part = table if room is None or len(table) <= room else [*table[: room - 1], f"… {len(table) - room + 1} more"]
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
    blocks = _number(row.get("active_blocks"))
    return [
        _worker_name(f"{row['worker_id']}/{row['rank']}"),
        printable(row["model"]),
        row["role"],
        row["health"],
        _number(row["requests"]),
        f"{blocks}/{total}" if total and blocks != "-" else blocks,
        _number(row.get("prefill_tokens")),
        _number(row.get("cached_blocks")),
        _milliseconds(row.get("ttft_ms")),
        _milliseconds(row.get("itl_ms")),
    ]


def _request(id: str, row: Document, now: float) -> list[str]:
    return [
        printable(id),
        printable(row["model"]),
        row["stage"],
        ",".join(_worker_name(worker) for worker in row["workers"]) or "-",
        _number(row["input_tokens"]),
        _number(row["output_tokens"]),
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
    return [printable(row["request_id"]), printable(row["model"]), _worker_name(row["worker"]), why]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
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


def printable(text: Any) -> str:
    """Names come from outside: nothing in them may move the cursor."""
    line = "".join(character if character.isprintable() else "?" for character in str(text))
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


def _worker_name(key: str) -> str:
    """The last digits of the id, as the page shows it."""
    id, _, rank = key.partition("/")
    return (f"…{id[-6:]}" if len(id) > 8 else printable(id)) + (f"/{rank}" if rank and rank != "0" else "")


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}ms" if value < 1000 else f"{value / 1000:.1f}s"


def _by_model(item: tuple[str, Document]) -> tuple[str, str]:
    return item[1]["model"], item[0]


def _newest_first(item: tuple[str, Document]) -> int:
    return -int(item[0])
