"""Limits of a process that a test sets and lifts while it runs: a disk without room, no more files to open."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def full_disk(pid: int = 0) -> Iterator[None]:
    """No byte can be written to a file; 0 is this process."""
    with _limited(pid, resource.RLIMIT_FSIZE, 0):
        yield


@contextmanager
def no_more_files(pid: int = 0) -> Iterator[None]:
    """Open files stay open; none can be opened."""
    with _limited(pid, resource.RLIMIT_NOFILE, 0):
        yield


@contextmanager
def few_files(pid: int = 0) -> Iterator[None]:
    """A third more files can be open than are now."""
    last = max(int(name) for name in os.listdir(f"/proc/{pid or 'self'}/fd"))
    with _limited(pid, resource.RLIMIT_NOFILE, (last + 1) * 4 // 3):
        yield


@contextmanager
def _limited(pid: int, kind: int, soft: int) -> Iterator[None]:
    before = resource.prlimit(pid, kind)
    resource.prlimit(pid, kind, (soft, before[1]))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, kind, before)
