"""What the block map needs of llama.cpp's memory."""

from __future__ import annotations

from typing import Protocol


class SequenceMemory(Protocol):
    def share(self, source: int, target: int, count: int) -> None:
        """Let `target` begin with the first `count` positions of `source`, without copying them."""

    def truncate(self, sequence: int, count: int) -> None:
        """Keep only the first `count` positions."""
