"""The end of a pipe into which a command writes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_ENDED = 141
"""What shells say of a program that a closed pipe ended."""


@contextmanager
def until_reader_leaves() -> Iterator[None]:
    """For a command that prints an answer: it ends without a word when nobody reads on, as in `… | head`."""
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        # Python writes what is buffered once more when it ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        raise SystemExit(_ENDED) from None
