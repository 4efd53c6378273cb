"""Shows on standard error how far a download has come: a bar on a terminal, else a line when it begins and ends."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from dynamo.model.pull.download import DownloadMeter, in_words


@contextmanager
def show_progress(name: str) -> Iterator[DownloadMeter]:
    if not sys.stderr.isatty():
        with _lines(name) as meter:
            yield meter
        return
    # Only a download needs it.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(name, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


@contextmanager
def _lines(name: str) -> Iterator[DownloadMeter]:
    begun, size, first = time.monotonic(), 0, True

    def meter(done: int, total: int | None) -> None:
        nonlocal size, first
        if first:
            print(f"downloading {name}{f' ({in_words(total)})' if total else ''} …", file=sys.stderr, flush=True)
        first, size = False, done

    yield meter
    if not first:
        took = time.monotonic() - begun
        print(f"downloaded {name}: {in_words(size)} in {took:.0f} s", file=sys.stderr, flush=True)
