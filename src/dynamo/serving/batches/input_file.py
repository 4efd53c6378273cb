"""The input file of a batch: what is wrong with its lines, and which of them are still to be answered."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from msgspec import structs

from dynamo.protocols.errors import InvalidRequest
from dynamo.protocols.files import BatchEndpoint, BatchError, BatchObject
from dynamo.serving.batches.journal import Journal
from dynamo.serving.batches.line import LineLimits, read_line

SHOWN_ERRORS = 50
"""Wrong lines that a failed batch names."""
COUNTED_EVERY = 0.5
"""Seconds between two updates of the counts in a batch's record."""


def check_file(path: Path, endpoint: BatchEndpoint, limits: LineLimits) -> tuple[int, list[BatchError]]:
    """How many requests there are, and what is wrong with their lines."""
    errors: list[BatchError] = []
    seen: set[str] = set()
    total = 0
    with path.open("rb") as lines:
        for number, line in numbered_lines(lines, limits.size):
            total += 1
            try:
                limits.check(line)
                read = read_line(line, endpoint)
                if read.custom_id in seen:
                    why = f"custom_id: {read.custom_id[:64]!r} is there twice."
                    raise InvalidRequest(why, "custom_id", "duplicate_custom_id")
                seen.add(read.custom_id)
            except InvalidRequest as error:
                wrong = BatchError(code=error.code or "invalid_line", message=error.message, param=error.param)
                errors.append(structs.replace(wrong, line=number))
                if len(errors) == SHOWN_ERRORS:
                    break
    if not total:
        errors.append(BatchError(code="empty_file", message="The input file has no requests."))
    return total, errors


def numbered_lines(lines: BinaryIO, longest: int = -1) -> Iterator[tuple[int, bytes]]:
    """The lines with their numbers. The rest of a line with more than `longest` bytes is skipped; -1 is no limit."""
    for number, line in enumerate(bounded_lines(lines, longest), start=1):
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if line.strip():
            yield number, line


def bounded_lines(lines: BinaryIO, longest: int) -> Iterator[bytes]:
    """Each line, cut off after `longest` + 1 bytes: enough to see that it is too long. -1 is no limit."""
    while line := lines.readline(longest + 1 or -1):
        yield line
        while len(line) > longest >= 0 and not line.endswith(b"\n"):
            line = lines.readline(longest + 1)
            if len(line) <= longest:
                break


class BatchProgress:
    """A batch while it is answered."""

    def __init__(self, batch: BatchObject, journal: Journal, lines: BinaryIO) -> None:
        self.batch = batch
        self.journal = journal
        self.waiting = self._unanswered(lines)
        self._counted = elapsed()
        # Counted from here by a clock that cannot be set: a jump of the time of day must not end a batch.
        self._expires = self._counted + batch.expires_at - now() if batch.expires_at is not None else math.inf

    def is_expired(self) -> bool:
        return elapsed() >= self._expires

    def _unanswered(self, lines: BinaryIO) -> Iterator[tuple[int, bytes]]:
        for number, line in numbered_lines(lines):
            if number not in self.journal:
                yield number, line

    def is_count_due(self) -> bool:
        seconds = elapsed()
        due = seconds - self._counted >= COUNTED_EVERY
        if due:
            self._counted = seconds
        return due

    def counted(self, batch: BatchObject) -> BatchObject:
        failed = self.journal.failed
        batch.request_counts.completed, batch.request_counts.failed = len(self.journal) - failed, failed
        return batch


def now() -> int:
    return int(time.time())


def elapsed() -> float:
    return time.monotonic()
