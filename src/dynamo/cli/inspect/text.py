"""The answer of an inspection as text for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

WIDEST = 60
"""Characters of a cell."""


def show_part(part: dict[str, Any], *, every: bool = False) -> Iterator[str]:
    """The lines of one part. With `every` row asked for, nothing is left out."""
    write: dict[str, Callable[[dict[str, Any]], Iterator[str]]] = {
        "process": _process,
        "blocked": _show_block,
        "table": _table,
        "stacks": _stacks,
        "profile": _profile,
        "objects": _objects,
        "log": lambda part: iter([f"log levels: {part['filter']}"]),
    }
    yield from write[part["kind"]](part)
    if part["kind"] == "table" and not every:
        left = part["total"] - sum(row.get("count", 1) for row in part["rows"])
        if left > 0:
            yield f"  … and {left} more: dynamo inspect PROCESS {part['name']}"


def _process(part: dict[str, Any]) -> Iterator[str]:
    yield f"process {part['pid']}   dynamo {part['version']}   Python {part['python']}"
    yield f"  {_safe(part['command'])}"
    memory = f"{part['rss_mb']} MB (peak {part['peak_rss_mb']})" if "rss_mb" in part else "memory unknown"
    files = f"   {part['open_files']} open files" if "open_files" in part else ""
    times = f"up {part['uptime_seconds']:g} s   CPU {part['cpu_seconds']:g} s"
    yield f"  {times}   {memory}   {part['threads']} threads{files}"


def _show_block(part: dict[str, Any]) -> Iterator[str]:
    yield ""
    culprit = part["culprit"]
    if culprit is None:
        yield f"THE EVENT LOOP HAS NOT ANSWERED for {part['seconds']:g} s, but runs no Python code: it waits for a"
        yield "processor or for Python's lock. See --stacks for the other threads."
        return
    yield f"THE EVENT LOOP IS BLOCKED: for {part['seconds']:g} s it has not left"
    yield f"  {_place(culprit)}" + (f"   in task {_safe(part['task'])}" if part["task"] else "")
    yield "Its stack, the innermost call last:"
    yield from _stack(part["stack"])


def _table(part: dict[str, Any]) -> Iterator[str]:
    yield ""
    yield f"{part['name'].upper()}: {part['total']}"
    rows = [{name: _cell(value) for name, value in row.items()} for row in part["rows"]]
    if not rows:
        return
    columns = list(dict.fromkeys(name for row in rows for name in row))
    yield from _grid([[name.upper() for name in columns], *([row.get(name, "-") for name in columns] for row in rows)])


def _stacks(part: dict[str, Any]) -> Iterator[str]:
    for thread in part["threads"]:
        yield f"thread {_safe(thread['thread'])}{' (daemon)' if thread['daemon'] else ''}:"
        yield from _stack(thread["stack"])
        yield ""


def _profile(part: dict[str, Any]) -> Iterator[str]:
    yield f"{part['looks']} looks in {part['seconds']:g} s; shares of one processor"
    for title, rows in (
        ("BY THREAD", part["threads"]),
        ("IN THE FUNCTION ITSELF", part["own"]),
        ("WITH WHAT IT CALLS", part["total"]),
    ):
        yield ""
        yield title
        for name, ms in list(rows.items())[:20]:
            yield f"  {ms / 1000 / part['seconds']:>6.1%}  {_safe(name)}"


def _objects(part: dict[str, Any]) -> Iterator[str]:
    yield f"{part['objects']} objects that the garbage collector follows, reached from modules, threads and tasks"
    if not part["complete"]:
        yield "  There are more: counting all of them would have taken too long."
    for name, entries in part["not_followed"].items():
        yield f"  beside {entries} entries of large containers ({_safe(name)})"
    yield from _grid([[f"{count}", _safe(name)] for name, count in part["types"].items()])


def _stack(stack: Sequence[dict[str, Any]]) -> Iterator[str]:
    for each in stack:
        yield f"  {_place(each)}"


def _place(place: dict[str, Any]) -> str:
    return _safe(f"{place['function']}  {place['file']}:{place['line']}")


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, dict):  # a place in the source
        file = "/".join(value["file"].split("/")[-2:])
        return _safe(f"{value['function']} {file}:{value['line']}")
    return _safe(str(value))


def _grid(rows: list[list[str]]) -> Iterator[str]:
    rows = [[cell if len(cell) <= WIDEST else f"{cell[: WIDEST - 1]}…" for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _safe(text: str) -> str:
    """Names come from outside: nothing in them may move the cursor."""
    return "".join(character if character.isprintable() else "?" for character in text)
