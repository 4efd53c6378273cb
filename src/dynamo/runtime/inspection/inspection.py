"""Answers questions about this process, from a thread: also while its event loop is blocked."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from dynamo.runtime.inspection.facts import process_facts
from dynamo.runtime.inspection.objects import object_counts
from dynamo.runtime.inspection.profile import ThreadProfile
from dynamo.runtime.inspection.slices import SlicedWork, paced
from dynamo.runtime.inspection.stacks import LoopWatch, task_rows, thread_stacks
from dynamo.runtime.logging import set_filter

Row = dict[str, Any]
TASKS = "tasks"
NDJSON = "application/x-ndjson"
LOOP_SECONDS = 1.0
"""An event loop that does not begin to answer within this time is called blocked."""
LOOKS = 20
"""Looks at a loop that does not answer, in that time."""
ROWS_SECONDS = 30.0
"""For collecting all rows from a loop that answers."""


class InspectionRequest(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    what: Literal["tables", "stacks", "profile", "objects", "log"] = "tables"
    tables: tuple[str, ...] = ()
    """The tables that `tables` shows; all where it is empty."""
    most: Annotated[int, Meta(ge=1, le=100_000)] = 10
    """Rows of a table."""
    seconds: Annotated[float, Meta(gt=0, le=300)] = 5.0
    """How long `profile` samples."""
    filter: Annotated[str, Meta(max_length=2000)] = ""
    """The filter that `log` sets, written as DYN_LOG is; empty only reads it."""


class Inspection:
    """The tables of this process, by name. Each row source is called on the loop, and only when someone asks."""

    def __init__(self) -> None:
        self._sources: dict[str, list[Callable[[], Iterable[Row]]]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watch: LoopWatch | None = None
        self._started = time.monotonic()
        self._ended = threading.Event()

    def add(self, table: str, rows: Callable[[], Iterable[Row]]) -> Callable[[], None]:
        """Add rows to a table; returns a function that removes them. Iterating may pause between any two rows."""
        sources = self._sources.setdefault(table, [])
        sources.append(rows)

        def remove() -> None:
            if rows in sources:
                sources.remove(rows)

        return remove

    def follow(self, loop: asyncio.AbstractEventLoop) -> None:
        """Called in the loop whose tables these are."""
        self._loop, self._watch = loop, LoopWatch(loop)

    def end(self) -> None:
        """Cut short the answers that take their time, and those that follow."""
        self._ended.set()

    def answer(self, request: InspectionRequest) -> Iterator[Row]:
        """Blocks: not for the event loop's thread. Each part of the answer is an object with its `kind`."""
        match request.what:
            case "stacks":
                yield {"kind": "stacks", "threads": thread_stacks()}
            case "profile":
                profile = ThreadProfile()
                profile.run(request.seconds, self._ended)
                yield {"kind": "profile", "seconds": request.seconds} | profile.rows()
            case "objects":
                tasks = asyncio.all_tasks(self._loop) if self._loop else ()
                yield {"kind": "objects"} | object_counts(tasks, ended=self._ended.is_set)
            case "log":
                yield {"kind": "log", "filter": set_filter(request.filter)}
            case "tables":
                yield from self._tables(request)

    def _tables(self, request: InspectionRequest) -> Iterator[Row]:
        yield {"kind": "process", "uptime_seconds": round(time.monotonic() - self._started, 1)} | process_facts()
        known = (TASKS, *sorted(self._sources))
        wanted = request.tables or known
        if unknown := [name for name in wanted if name not in known]:
            raise ValueError(f"there is no table '{unknown[0]}' in this process; it has {', '.join(known)}")
        if self._loop is None or self._watch is None:
            return
        asked = time.perf_counter()
        for name in wanted:
            work = SlicedWork(self._loop, partial(self._rows, name, request.most))
            blocked = self._wait(work, self._watch)
            if blocked:
                yield blocked | {"kind": "blocked", "seconds": round(time.perf_counter() - asked, 1)}
                return
            if work.error:
                raise work.error
            *rows, total = work.results
            yield {"kind": "table", "name": name, "rows": rows, "total": total, "held_ms": _ms(work.longest)}

    def _rows(self, name: str, most: int) -> Iterator[Any]:
        """The first `most` rows of a table, None where there is nothing to keep, and at last the number of all."""
        total = 0
        assert self._loop
        own: list[Callable[[], Iterable[Row | None]]] = [partial(task_rows, self._loop)] if name == TASKS else []
        for source in (*own, *self._sources.get(name, ())):
            for row in source():
                if row is not None:
                    total += row.get("count", 1)
                yield row if row is not None and (most := most - 1) >= 0 else None
        yield total

    def _wait(self, work: SlicedWork, watch: LoopWatch) -> Row | None:
        """None once the work is done; otherwise what holds the loop."""
        samples = []
        for _ in range(LOOKS):
            if work.begun.wait(LOOP_SECONDS / LOOKS):
                break
            samples.append(watch.frames())
        else:
            work.give_up()
            return watch.culprit(samples) or {"culprit": None, "task": None, "stack": []}
        if work.done.wait(ROWS_SECONDS):
            return None
        work.give_up()
        return watch.culprit([watch.frames()]) or {"culprit": None, "task": None, "stack": []}


def decode_request(data: bytes) -> InspectionRequest:
    """Raises ValueError."""
    try:
        return msgspec.json.decode(data or b"{}", type=InspectionRequest)
    except msgspec.MsgspecError as error:
        raise ValueError(f"not a request of an inspection: {error}") from None


def encoded(inspection: Inspection, data: bytes) -> Iterator[bytes]:
    """The answer to an encoded request; see `encoded_answer`."""
    try:
        request = decode_request(data)
    except ValueError as error:
        yield msgspec.json.encode({"kind": "error", "error": str(error)}) + b"\n"
    else:
        yield from encoded_answer(inspection, request)


def encoded_answer(inspection: Inspection, request: InspectionRequest) -> Iterator[bytes]:
    """The answer as lines of JSON; a failure is the last of them."""
    try:
        for part in inspection.answer(request):
            if rows := part.get("rows"):
                # Encoding thousands of them at once would hold Python's lock for longer than a slice.
                part["rows"] = [msgspec.Raw(msgspec.json.encode(row)) for row in paced(rows)]
            yield msgspec.json.encode(part) + b"\n"
    except Exception as error:
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        yield msgspec.json.encode({"kind": "error", "error": f"{kind}{error}"}) + b"\n"


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)
