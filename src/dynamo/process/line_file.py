"""A file of lines, whether it is compressed or not."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import BinaryIO


def open_lines(path: Path) -> gzip.GzipFile | BinaryIO:
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if packed else path.open("rb")
