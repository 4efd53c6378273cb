"""Where one worker's chains of blocks end, fork and have gaps, however its blocks come and go."""

from __future__ import annotations

from collections.abc import Iterable


class Chains:
    """Held blocks with one held child, that is nearly all, are written down nowhere: a chain costs one entry."""

    __slots__ = ("ends", "forks", "orphans")

    def __init__(self) -> None:
        self.ends: set[int] = set()
        """Held blocks without held children. Every held block is one of them or comes before one."""
        self.forks: dict[int, int] = {}
        """Held blocks with several held children, and how many."""
        self.orphans: dict[int, int] = {}
        """Blocks not held that have held children, and how many: while there are any, the chains have gaps."""

    def append(self, parent: int | None, last: int) -> None:
        """A chain of new blocks, none of them an orphan's parent, was put under a held block or under none."""
        ends = self.ends
        if parent in ends:
            ends.remove(parent)
        elif parent is not None:
            self.forks[parent] = self.forks.get(parent, 1) + 1
        ends.add(last)

    def gain(self, block: int, parent: int | None, parent_held: bool) -> None:
        children = self.orphans.pop(block, 0)
        if not children:
            self.ends.add(block)
        elif children > 1:
            self.forks[block] = children
        if parent is None:
            return
        if not parent_held:
            self.orphans[parent] = self.orphans.get(parent, 0) + 1
        elif parent in self.ends:
            self.ends.remove(parent)
        else:
            self.forks[parent] = self.forks.get(parent, 1) + 1

    def lose(self, blocks: Iterable[tuple[int, int | None]]) -> None:
        """Blocks with their parents, one after the other."""
        ends, forks, orphans = self.ends, self.forks, self.orphans
        # An end is written down only when the next block is another one: chains are lost from their end.
        end: int | None = None
        for block, parent in blocks:
            if block != end:
                if end is not None:
                    ends.add(end)
                if block in ends:
                    ends.remove(block)
                else:
                    orphans[block] = forks.pop(block, 1)
            end = None
            if orphans and parent in orphans:
                _count_down(orphans, parent, 0)
            elif forks and parent in forks:
                _count_down(forks, parent, 1)
            else:
                end = parent
        if end is not None:
            ends.add(end)


def _count_down(counts: dict[int, int], block: int, least: int) -> None:
    if counts[block] - 1 > least:
        counts[block] -= 1
    else:
        del counts[block]
