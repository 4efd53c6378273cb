"""The lines of all processes on one stream, each after the name of its process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TextIO

_COLOURS = ("36", "33", "32", "35", "34", "96", "93", "92", "95", "94")
_LOOK_SECONDS = 0.05
_LONGEST = 1 << 16
"""A longer line is written in pieces: a process that never ends its line must not fill the memory."""


class PrefixedOutput:
    def __init__(self, stream: TextIO, *, colour: bool) -> None:
        self._stream = stream
        self._colour = colour
        self._width = 0
        self._colours: dict[str, str] = {}

    def expect(self, name: str) -> None:
        """Make room for a name, so that the lines of all processes begin in one column."""
        self._width = max(self._width, len(name))

    def write(self, component: str, name: str, line: str) -> None:
        prefix = f"{name:<{self._width}} |"
        if self._colour:
            colour = self._colours.setdefault(component, _COLOURS[len(self._colours) % len(_COLOURS)])
            prefix = f"\x1b[{colour}m{prefix}\x1b[0m"
        try:
            self._stream.write(f"{prefix} {line}\n")
            self._stream.flush()
        except (OSError, ValueError):  # the reader of our output is gone; the processes go on
            pass


async def each_line(reader: asyncio.StreamReader) -> AsyncIterator[str]:
    """Yield lines until the other end is closed."""
    rest = b""
    while chunk := await reader.read(_LONGEST):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace").rstrip("\r")
        if len(rest) > _LONGEST:
            yield rest.decode(errors="replace")
            rest = b""
    if rest:
        yield rest.decode(errors="replace")


async def followed_lines(
    file: Path,
    ended: asyncio.Future[int],
    *,
    from_end: bool = False,
    most: int = 1 << 20,
    caught_up: Callable[[], None] = lambda: None,
) -> AsyncIterator[str]:
    """The lines that a process appends to a file, until it has ended. Beyond `most` bytes the file begins anew.

    `caught_up` is called whenever all that is there was read.
    """
    rest = b""
    with file.open("rb") as reader:
        if from_end:
            reader.seek(0, os.SEEK_END)
        while True:
            last = ended.done()
            if chunk := reader.read(_LONGEST):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield line.decode(errors="replace").rstrip("\r")
                if len(rest) > _LONGEST:
                    yield rest.decode(errors="replace")
                    rest = b""
                continue
            caught_up()
            if last:
                break
            if reader.tell() > most:
                os.truncate(file, 0)
                reader.seek(0)
            # Nothing tells that a file has grown.
            await asyncio.wait({ended}, timeout=_LOOK_SECONDS)
    if rest:
        yield rest.decode(errors="replace")
