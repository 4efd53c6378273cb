"""What one worker holds in one tier, by the names its engine has for blocks.

Where such a name is the sequence hash itself, or all workers call a block the same and one table serves them all,
nothing is written down per worker. A worker that has names of its own, or several for one block, keeps its own table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from dynamo.kv.hashing import sequence_hashes
from dynamo.protocols.kv import Tier
from dynamo.router.kv.index.blocks import Blocks


class Shelf:
    __slots__ = ("_aliases", "_blocks", "_elsewhere", "_listed", "_own", "_runs", "_slot", "count")

    def __init__(self, slot: int, blocks: Blocks, tier: Tier) -> None:
        self._slot = slot
        self._blocks = blocks
        self._runs = blocks.runs[tier]
        self._elsewhere = [runs.of for other, runs in blocks.runs.items() if other is not tier]
        self._begin(plain=True)

    def _begin(self, *, plain: bool) -> None:
        self.count = 0
        """Names held: a block may have several."""
        self._listed: dict[int, int] | None = None if plain else self._blocks.names.listed
        """What names mean; None where they are sequence hashes."""
        self._own = False
        """Whether that is a table of this worker's own."""
        self._aliases: dict[int, int] = {}
        """How many further names a block has beyond its first."""
        if not plain and not self._blocks.names.agreed:
            self._part()

    def meaning(self, name: int) -> int | None:
        """The block held under this name."""
        block = name if self._listed is None else self._listed.get(name)
        return block if block is not None and self._runs.holds(self._slot, block) else None

    def rows(self, common: Mapping[int, int] | None = None) -> list[tuple[int, int, int | None]]:
        """All names with the blocks held under them and their parents.

        Without the `common` names by block it looks through all of them, where those are used here.
        """
        held = dict(self._runs.held(self._slot))
        if self._listed is None:
            return [(block, block, parent) for block, parent in held.items()]
        if self._own:
            return [(name, block, held[block]) for name, block in self._listed.items()]
        if common is None:
            common = {block: name for name, block in self._listed.items() if block in held}
        return [(common[block], block, parent) for block, parent in held.items()]

    def store(self, names: list[int], chain: list[int], parent: int | None) -> int:
        """Consecutive blocks came under another, or under none; returns how many of the names mean something new."""
        if not self.count:
            self._begin(plain=names == chain)
        listed, gone = self._listed, self._blocks.names.gone
        if names == chain if listed is None else self._named(listed, names, chain):
            if gone:
                gone.difference_update(chain)
            new = self._runs.store(self._slot, chain, parent)
            self.count += new
            return new
        return sum([self._learn(*row) for row in zip(names, chain, [parent, *chain], strict=False)])

    def go_on(self, names: list[int], local: list[int], above: int) -> bool:
        """The usual event, in short: blocks come under the last of those that came before them.

        False, and nothing happens, if anything about it is unusual: then it is for `store`.
        """
        slot, runs, listed = self._slot, self._runs, self._listed
        parent = above if listed is None else listed.get(above)
        if parent is None:
            return False
        chain = sequence_hashes(local, parent)
        gone = self._blocks.names.gone
        if listed is None:
            fits = names == chain and (runs.append(slot, chain, parent) or runs.advance(slot, chain))
        else:
            size = len(listed)
            fits = list(map(listed.setdefault, names, chain)) == chain
            added = len(listed) - size
            if fits and added == len(chain) and not any(self._elsewhere) and (not gone or gone.isdisjoint(chain)):
                fits = runs.append(slot, chain, parent) or (self._own and runs.advance(slot, chain))
            else:
                fits = fits and not added and not self._own and runs.advance(slot, chain)
            if not fits:
                for _ in range(added):
                    listed.popitem()
        if fits:
            self.count += len(chain)
            if gone:
                gone.difference_update(chain)
        return fits

    def fill(self, names: list[int], blocks: list[int], parents: list[int | None]) -> None:
        """Blocks came in any order, with their parents."""
        begin, seen = 0, {*blocks[:1]}
        for end in range(1, len(blocks) + 1):
            if end == len(blocks) or parents[end] != blocks[end - 1] or blocks[end] in seen:
                self.store(names[begin:end], blocks[begin:end], parents[begin])
                begin = end
            seen.update(blocks[end : end + 1])

    def remove(self, names: list[int]) -> int:
        """Returns how many of the names were held."""
        listed = self._listed
        blocks = names if listed is None else list(map(listed.get, names))
        gone = self._runs.cut(self._slot, blocks) if names and not self._aliases else None
        if gone is None:
            return sum([self._forget(name) for name in names])
        if gone:
            self._lost(gone, blocks, names)
        if listed is not None and self._own:
            for name in names:
                del listed[name]
        self.count -= len(names)
        return len(names)

    def clear(self) -> int:
        """Hold nothing any more; returns how many names were held."""
        held = self.count
        self._lost(self._runs.clear(self._slot))
        self._begin(plain=True)
        return held

    def _named(self, listed: dict[int, int], names: list[int], chain: list[int]) -> bool:
        """Whether blocks have the names they should have; those of new ones are written down, if all is in order."""
        size = len(listed)
        fits = list(map(listed.setdefault, names, chain)) == chain
        added = len(listed) - size
        if fits and added:
            new = chain if added == len(chain) else list(islice(reversed(listed.values()), added))[::-1]
            fits = self._runs.lacks(self._slot, new) if self._own else self._blocks.unknown(new)
        if not fits:
            for _ in range(added):
                listed.popitem()
        return fits

    def _learn(self, name: int, block: int, parent: int | None) -> bool:
        known = self.meaning(name)
        if known == block:
            return False
        if known is not None:
            self._forget(name)
        common = self._blocks.names
        new = not self._blocks.held(block)
        if not self._own and not (name == block if self._listed is None else common.means(name, block, new=new)):
            common.agreed = False
            self._part()
        if self._own and self._listed is not None:
            self._listed[name] = block
        self.count += 1
        if not self._runs.store(self._slot, [block], parent):
            self._aliases[block] = self._aliases.get(block, 0) + 1
        elif new:
            common.gone.discard(block)
        return True

    def _forget(self, name: int) -> bool:
        block = self.meaning(name)
        if block is None:
            return False
        self.count -= 1
        if self._own and self._listed is not None:
            del self._listed[name]
        if further := self._aliases.pop(block, 0):
            if further > 1:
                self._aliases[block] = further - 1
            return True
        self._lost(self._runs.drop(self._slot, block), [block], [name])
        return True

    def _lost(self, gone: list[int], blocks: Sequence[int | None] = (), names: Sequence[int] = ()) -> None:
        """Nobody holds these blocks here any more: what they were called is forgotten, unless another tier has them.

        `names` are those of `blocks`, as far as they are known.
        """
        common = self._blocks.names
        if any(self._elsewhere):
            gone = [block for block in gone if not self._blocks.held(block)]
        if self._listed is not common.listed or not names:
            common.lost(gone)
        elif len(gone) == len(names):
            for name in names:
                del common.listed[name]
        else:
            called = dict(zip(blocks, names, strict=True))
            for block in gone:
                del common.listed[called[block]]

    def _part(self) -> None:
        """From now on keep a table of this worker's own."""
        self._listed = {name: block for name, block, _ in self.rows()} if self.count else {}
        self._own = True
