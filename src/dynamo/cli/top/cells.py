"""Cells and tables of `dynamo top`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

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


def worker_name(key: str) -> str:
    """The last digits of the id, as the page shows it."""
    id, _, rank = key.partition("/")
    short = f"…{printable(id[-6:])}" if len(id) > 8 else printable(id)
    return short + (f"/{printable(rank)}" if rank and rank != "0" else "")


def number(value: int | None) -> str:
    return "-" if value is None else str(value)


def milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}ms" if value < 1000 else f"{value / 1000:.1f}s"
