"""Facts about files: whether a live process holds one, whether it has changed, whether it is compressed."""

from __future__ import annotations

import errno
import fcntl
import gzip
import os
from pathlib import Path
from typing import BinaryIO

EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO)
"""With these a file cannot be looked at: they say nothing about whether it is there."""
READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a FIFO or a link someone put there must not block
Stamp = tuple[int, int, int]


def create_held(unfinished: Path, place: Path) -> int:
    """Create a file at `place` and lock it, by way of `unfinished`; returns the descriptor that holds the lock."""
    # Locked before it gets its name: no process ever finds the file of a live process unlocked.
    fd = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(unfinished, place)
    except BaseException:
        os.close(fd)
        raise
    return fd


def is_held(path: Path) -> bool:
    """Whether a process holds the lock of this file. Raises OSError if it cannot be looked at."""
    try:
        fd = os.open(path, READ)
    except OSError as why:
        if why.errno in EXHAUSTED:
            raise
        return False
    try:
        # Shared, so that two processes that check at once do not take each other for the owner.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def file_stamp(path: Path | str, *, follow_symlinks: bool = True) -> Stamp | None:
    """A stamp that differs after the file was rewritten, replaced or linked elsewhere; None without a file."""
    try:
        status = os.stat(path, follow_symlinks=follow_symlinks)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def open_lines(path: Path) -> gzip.GzipFile | BinaryIO:
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if packed else path.open("rb")
