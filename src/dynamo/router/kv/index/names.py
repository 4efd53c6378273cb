"""Names that engines give to blocks, as far as all workers agree on them."""

from __future__ import annotations

from collections.abc import Iterable


class CommonNames:
    """Names that mean the same block to every worker that uses them. A block has at most one."""

    __slots__ = ("agreed", "gone", "listed")

    def __init__(self) -> None:
        self.listed: dict[int, int] = {}
        """Sequence hash by name."""
        self.gone: set[int] = set()
        """Blocks nobody holds whose name may still be listed: no other name may become theirs meanwhile."""
        self.agreed = True
        """No worker has called a block by another name than the others."""

    def means(self, name: int, sequence: int, *, new: bool) -> bool:
        """Whether this is the common name of a block; a `new` block gets it if the name is free."""
        known = self.listed.get(name)
        if known is None and new and sequence not in self.gone:
            self.listed[name] = sequence
            return True
        return known == sequence

    def lost(self, blocks: Iterable[int]) -> None:
        """Nobody holds these blocks any more, and which names were their common ones is not known here."""
        if not self.listed:
            return
        self.gone.update(blocks)
        if len(self.gone) > 8 + len(self.listed) // 4:
            for name in [name for name, block in self.listed.items() if block in self.gone]:
                del self.listed[name]
            self.gone.clear()
