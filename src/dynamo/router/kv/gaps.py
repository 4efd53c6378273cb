"""Whether a worker's chains have gaps: blocks it lost while it still holds later ones of the same chain."""

from __future__ import annotations


class Gaps:
    """True while there is a gap. It counts children, so that a change costs the same however long the chains are."""

    __slots__ = ("_children", "_orphans")

    def __init__(self) -> None:
        self._children: dict[int, int] = {}
        """Held children of each held block, left out where it is one: so a chain costs one entry, at its end."""
        self._orphans: dict[int, int] = {}
        """Blocks not held that have held children, and how many."""

    def __bool__(self) -> bool:
        return bool(self._orphans)

    def append(self, parent: int | None, last: int) -> None:
        """A chain of new blocks that ends in `last` was put under a held parent, or under none."""
        if parent is not None:
            self._count(parent, self._children.get(parent, 1) + 1)
        self._children[last] = 0

    def gain(self, block: int, parent: int | None, parent_held: bool) -> None:
        self._count(block, self._orphans.pop(block, 0))
        if parent is None:
            return
        if parent_held:
            self._count(parent, self._children.get(parent, 1) + 1)
        else:
            self._orphans[parent] = self._orphans.get(parent, 0) + 1

    def lose(self, block: int, parent: int | None) -> None:
        children, orphans = self._children, self._orphans
        if left := children.pop(block, 1):
            orphans[block] = left
        if parent is None:
            return
        if parent not in orphans:
            self._count(parent, children.get(parent, 1) - 1)
        elif orphans[parent] > 1:
            orphans[parent] -= 1
        else:
            del orphans[parent]

    def _count(self, block: int, children: int) -> None:
        if children == 1:
            self._children.pop(block, None)
        else:
            self._children[block] = children
