"""What one worker holds in one tier.

Its bit in the mask of each block says what it holds. Events speak of blocks by names of the engine's own. Where such a
name is the sequence hash itself, or all workers call a block the same and one table serves them all, nothing is written
down per worker. A worker that has names of its own, or several for one block, keeps its own table.
"""

from __future__ import annotations

from collections.abc import Mapping

from dynamo.protocols.kv import Tier
from dynamo.router.kv.blocks import Blocks
from dynamo.router.kv.chains import Chains
from dynamo.router.kv.hashing import BASE_SEED, digest, pair, sequence_hashes


class Shelf:
    __slots__ = ("_aliases", "_bit", "_blocks", "_elsewhere", "_holders", "_listed", "_own", "chains", "count")

    def __init__(self, slot: int, blocks: Blocks, tier: Tier) -> None:
        self._bit = 1 << slot
        self._blocks = blocks
        self._holders = blocks.holders[tier]
        self._elsewhere = [holders for other, holders in blocks.holders.items() if other is not tier]
        self._begin(plain=True)

    def _begin(self, *, plain: bool) -> None:
        self.count = 0
        """Names held: a block may have several."""
        self.chains = Chains()
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
        sequence = name if self._listed is None else self._listed.get(name)
        return sequence if sequence is not None and self._holders.get(sequence, 0) & self._bit else None

    def items(self, common: Mapping[int, int] | None = None) -> list[tuple[int, int]]:
        """All names with the blocks held under them.

        Without the `common` names by block it looks through all of them, where those are used here.
        """
        if self._own and self._listed is not None:
            return list(self._listed.items())
        held = self._held()
        if self._listed is None:
            return [(block, block) for block in held]
        if common is not None:
            return [(common[block], block) for block in held]
        return [(name, block) for name, block in self._listed.items() if block in held]

    def append(self, names: list[int], local: list[int], above: int | None) -> int:
        """Take the leading blocks that go under the block named `above`, or under none, and are in no way special.

        Returns how many. This is how nearly all blocks come; what is left is for `learn`.
        """
        if not self.count:
            self._begin(plain=names == sequence_hashes(local))
        holders, listed, bit, own = self._holders, self._listed, self._bit, self._own
        get = holders.get
        parent = None
        if above is not None:
            parent = above if listed is None else listed.get(above)
            if parent is None or not get(parent, 0) & bit:
                return 0
        parents, gone, orphans = self._blocks.parents, self._blocks.names.gone, self.chains.orphans
        careful = gone or orphans or len(parents) != len(holders)
        seen: int | None = None
        made = new = 0
        before = parent
        # Not strict: the columns are equally long, and saying so costs as much as two blocks.
        for name, tokens in zip(names, local):  # noqa: B905
            sequence = tokens if before is None else digest(pair(before, tokens), BASE_SEED)
            mask = get(sequence)
            if careful and (sequence in orphans or (mask is None and (sequence in parents or sequence in gone))):
                break
            # The same workers are one object for all blocks they hold together, the same block one in all tables.
            if mask is not None and mask is not seen:
                if mask & bit:
                    break
                seen, made = mask, mask | bit
            if listed is None:
                if name != sequence:
                    break
            elif (known := listed.get(name)) is None:
                if mask is not None and not own:
                    break
                listed[name] = sequence
            elif known != sequence:
                break
            else:
                sequence = known
            if mask is None:
                holders[sequence] = bit
                parents[sequence] = before
            else:
                holders[sequence] = made
            before = sequence
            new += 1
        if new and before is not None:
            self.chains.append(parent, before)
            self.count += new
        return new

    def learn(self, names: list[int], chain: list[int], parent: int | None) -> int:
        """Consecutive blocks came; returns how many of the names mean something new."""
        if not self.count:
            self._begin(plain=names == chain)
        new = 0
        for name, sequence in zip(names, chain, strict=True):
            new += self._learn(name, sequence, parent)
            parent = sequence
        return new

    def fill(self, names: list[int], sequences: list[int], parents: list[int | None]) -> None:
        """Blocks came in any order, with their parents."""
        if not self.count:
            self._begin(plain=names == sequences)
        for name, sequence, parent in zip(names, sequences, parents, strict=True):
            self._learn(name, sequence, parent)

    def remove(self, names: list[int]) -> int:
        """Returns how many of the names were held."""
        if self._aliases:
            return sum([self._forget(name) for name in names])
        holders, listed, bit, own = self._holders, self._listed, self._bit, self._own
        parents, common = self._blocks.parents, self._blocks.names
        elsewhere = any(self._elsewhere)
        get = holders.get
        seen: int | None = None
        left = 0
        lost = []
        for name in names:
            sequence = name if listed is None else listed.get(name)
            if sequence is None or not (mask := get(sequence, 0)) & bit:
                continue
            if mask != bit:
                if mask is not seen:
                    seen, left = mask, mask ^ bit
                holders[sequence] = left
                parent = parents[sequence]
            else:
                del holders[sequence]
                if elsewhere and self._blocks.held(sequence):
                    parent = parents[sequence]
                else:
                    parent = parents.pop(sequence)
                    if listed is common.listed:
                        del listed[name]
                    else:
                        common.lost(sequence)
            if own and listed is not None:
                del listed[name]
            lost.append((sequence, parent))
        self.chains.lose(lost)
        self.count -= len(lost)
        return len(lost)

    def clear(self) -> int:
        """Hold nothing any more; returns how many names were held."""
        held = self.count
        for block in self._held():
            self._drop(block)
        self._begin(plain=True)
        return held

    def _learn(self, name: int, sequence: int, parent: int | None) -> bool:
        known = self.meaning(name)
        if known == sequence:
            return False
        if known is not None:
            self._forget(name)
        blocks, holders, bit = self._blocks, self._holders, self._bit
        new = sequence not in blocks.parents
        if not self._own and not (
            name == sequence if self._listed is None else blocks.names.means(name, sequence, new=new)
        ):
            blocks.names.agreed = False
            self._part()
        if self._own and self._listed is not None:
            self._listed[name] = sequence
        self.count += 1
        mask = holders.get(sequence, 0)
        if mask & bit:
            self._aliases[sequence] = self._aliases.get(sequence, 0) + 1
            return True
        holders[sequence] = mask | bit if mask else bit
        if new:
            blocks.parents[sequence] = parent
            blocks.names.gone.discard(sequence)
        else:
            parent = blocks.parents[sequence]
        self.chains.gain(sequence, parent, parent is not None and bool(holders.get(parent, 0) & bit))
        return True

    def _forget(self, name: int) -> bool:
        sequence = self.meaning(name)
        if sequence is None:
            return False
        self.count -= 1
        if self._own and self._listed is not None:
            del self._listed[name]
        if further := self._aliases.pop(sequence, 0):
            if further > 1:
                self._aliases[sequence] = further - 1
            return True
        common = None if self._own or self._listed is None else name
        self.chains.lose([(sequence, self._drop(sequence, common))])
        return True

    def _held(self) -> dict[int, None]:
        """The blocks held, each after its parent."""
        holders, parents, bit = self._holders, self._blocks.parents, self._bit
        held: dict[int, None] = {}
        for end in self.chains.ends:
            path: dict[int, None] = {}
            block: int | None = end
            while block is not None and holders.get(block, 0) & bit and block not in held and block not in path:
                path[block] = None
                block = parents[block]
            held.update(dict.fromkeys(reversed(path)))
        if len(held) + sum(self._aliases.values()) < self.count:
            # Chains that bite their own tail have no end; only a malformed snapshot makes them.
            held.update(dict.fromkeys([block for block, mask in holders.items() if mask & bit]))
        return held

    def _drop(self, sequence: int, name: int | None = None) -> int | None:
        """Take the bit from a block and return its parent; `name` is the block's common one, where it is known."""
        blocks, holders = self._blocks, self._holders
        if left := holders[sequence] ^ self._bit:
            holders[sequence] = left
            return blocks.parents[sequence]
        del holders[sequence]
        if blocks.held(sequence):
            return blocks.parents[sequence]
        if name is None:
            blocks.names.lost(sequence)
        else:
            del blocks.names.listed[name]
        return blocks.parents.pop(sequence)

    def _part(self) -> None:
        """From now on keep a table of this worker's own."""
        self._listed = dict(self.items()) if self.count else {}
        self._own = True
