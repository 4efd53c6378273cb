"""Whether a file has changed since it was last looked at."""

from __future__ import annotations

import os
from pathlib import Path

Stamp = tuple[int, int, int]


def file_stamp(path: Path | str, *, follow_symlinks: bool = True) -> Stamp | None:
    """Differs after the file was rewritten, replaced or linked elsewhere; None without a file."""
    try:
        status = os.stat(path, follow_symlinks=follow_symlinks)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size
