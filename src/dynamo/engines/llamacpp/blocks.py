"""The block map: what each sequence of llama.cpp holds, in blocks of tokens, and what of it may be used again.

llama.cpp keeps one cell per token, and several sequences may share a cell. We share whole blocks only, from the start
of a sequence, so a cell belongs to one block, and a block lives as long as a sequence holds it.

A finished sequence stays, as cache, until its room is needed. Its blocks leave the cells and are kept as bytes in host
memory, because every step looks at all cells in use, whoever holds them. They count as used all the same: they may come
back at any time, and no more is kept than the cells would hold.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from dynamo.kv.block_names import announced, announced_parent
from dynamo.kv.messages import Cleared, KvChange, Removed, Stored

_KEPT_TOKENS = 256
"""Blocks are kept together up to this many tokens, so that few calls bring them back."""


class SequenceMemory(Protocol):
    def share(self, source: int, target: int, count: int, start: int = 0) -> None:
        """Let `target` hold the positions of `source` from `start` up to `count`, without copying them."""

    def truncate(self, sequence: int, count: int) -> None:
        """Keep only the first `count` positions."""

    def copy(self, sequence: int, start: int, end: int) -> bytes:
        """The state of these positions; empty if it cannot be had."""

    def put(self, state: bytes, target: int, start: int, end: int) -> bool:
        """Give `target` these positions of what `copy` returned; False if there is no room."""


class KeptBlocks:
    """The state of successive blocks, from the `first` one of a sequence to before the `end`."""

    __slots__ = ("end", "first", "state")

    def __init__(self, first: int, end: int, state: bytes) -> None:
        self.first, self.end, self.state = first, end, state


class Block:
    """A full block of computed tokens; `hash` is its name. It lies in cells while requests hold it, else it is kept."""

    __slots__ = ("hash", "holders", "kept", "prefixes")

    def __init__(self, hash: int) -> None:
        self.hash = hash
        self.holders: set[Held] = set()
        self.prefixes: set[Prefix] = set()
        self.kept: KeptBlocks | None = None
        """Once made it stays, as the block never changes."""


class Held:
    """The sequence of a request: full blocks, then `tail` cells of its own."""

    __slots__ = ("blocks", "number", "tail")

    def __init__(self, number: int) -> None:
        self.number = number
        self.blocks: list[Block] = []
        self.tail = 0


class Prefix:
    """What is cached of a finished sequence."""

    __slots__ = ("blocks",)

    def __init__(self, blocks: list[Block]) -> None:
        self.blocks = blocks


class BlockMap:
    """Follows every change of the memory, and makes those that free something.

    Two sequences that computed the same block hold a copy each. Events announce the first copy and the loss of the
    last one, so a set that follows them is exactly what can be found.
    """

    def __init__(
        self,
        memory: SequenceMemory,
        cells: int,
        sequences: int,
        block_size: int,
        *,
        prefixes: int,
        caching: bool = True,
    ) -> None:
        """Requests may hold `sequences` at a time; of finished ones, `prefixes` are kept at most."""
        self.cells = cells
        self.block_size = block_size
        self.used = 0
        self._memory = memory
        self.caching = caching
        self._numbers = list(range(sequences - 1, -1, -1))
        self._held: set[Held] = set()
        self._most_prefixes = prefixes
        self._prefixes: OrderedDict[Prefix, None] = OrderedDict()
        """The least recently used first."""
        self._found: dict[int, list[Block]] = {}
        """The copies of each block by its name, which no prompt can forge: see `dynamo.kv.block_names`."""
        self._events: list[KvChange] = []

    @property
    def in_use(self) -> int:
        """How many sequences are held by requests."""
        return len(self._held)

    @property
    def active_blocks(self) -> int:
        """Blocks that requests hold, begun ones included."""
        active = {id(block) for held in self._held for block in held.blocks}
        return len(active) + sum(1 for held in self._held if held.tail)

    def hashes(self) -> set[int]:
        """What routers know the blocks by."""
        return set(announced(self._found))

    def lookup(self, hashes: Sequence[int]) -> int:
        """How many blocks at the start of `hashes` are held by one sequence."""
        # A hash covers all blocks before it, and a sequence that holds a block holds those before it.
        low, high = 0, len(hashes)
        while low < high:
            middle = (low + high + 1) // 2
            if hashes[middle - 1] in self._found:
                low = middle
            else:
                high = middle - 1
        return low

    def begin(self, hashes: Sequence[int], tokens: int, promised: int = 0) -> Held | None:
        """A sequence that begins with the found blocks of `hashes` and has room for `tokens`; None if there is none.

        `promised` cells are left to others. Cached prefixes give way, the least recently used first.
        """
        blocks = self._chain(hashes)
        needed = tokens - len(blocks) * self.block_size
        short = needed + promised - (self.cells - self.used)
        if not self._numbers or (short > 0 and self._evictable(blocks) < short):
            return None
        held = Held(self._numbers.pop())
        self._held.add(held)
        self._bring(blocks, held.number)
        held.blocks = blocks
        for block in blocks:
            block.holders.add(held)
        self.reserve(tokens - len(blocks) * self.block_size + promised)
        return held

    def reserve(self, count: int) -> bool:
        """Free cells until `count` are free; False if requests hold too many."""
        while self.cells - self.used < count:
            if not self._prefixes:
                return False
            self._shorten(next(iter(self._prefixes)), count - (self.cells - self.used))
        return True

    def forget_cached(self) -> bool:
        """Drop all cached prefixes; whether that freed room."""
        used = self.used
        for prefix in list(self._prefixes):
            self._shorten_to(prefix, 0)
        return self.used < used

    def grow(self, held: Held, count: int, hashes: Sequence[int], parent: int | None) -> None:
        """`count` more tokens were computed; `hashes` are those of the blocks that became full."""
        self.used += count
        held.tail += count
        if not hashes:
            return
        held.tail -= len(hashes) * self.block_size
        stored: list[int] = []
        for hash in hashes:
            block = Block(hash)
            block.holders.add(held)
            held.blocks.append(block)
            copies = self._found.get(hash)
            if copies is None:
                self._found[hash] = [block]
                stored.append(hash)
                continue
            copies.append(block)
            self._store(stored, parent)
            stored, parent = [], hash
        self._store(stored, parent)

    def end(self, held: Held) -> None:
        """The request is over: its full blocks become cache."""
        self._held.remove(held)
        blocks, held.blocks = held.blocks, []
        self.used -= held.tail
        held.tail = 0
        for block in blocks:
            block.holders.discard(held)
        count = self._keep(held.number, blocks) if self.caching else 0
        self._memory.truncate(held.number, 0)
        self._numbers.append(held.number)
        # What could not be copied is lost to the prefixes that share it, too.
        for prefix in list(blocks[count].prefixes) if count < len(blocks) else ():
            self._shorten_to(prefix, count)
        self._lose(blocks[count:])
        if count:
            self._remember(Prefix(blocks[:count]))

    def state(self, hashes: Sequence[int], first: int, end: int) -> bytes:
        """The state of the blocks from `first` to before `end` of a prompt; empty if they are not all there."""
        blocks = self._chain(hashes[:end])
        if len(blocks) < end:
            return b""
        kept = blocks[first].kept
        if kept is not None and kept is blocks[end - 1].kept and (kept.first, kept.end) == (first, end):
            return kept.state
        if not self._numbers:
            return b""
        number = self._numbers[-1]
        try:
            if not self._bring(blocks, number, first):
                return b""
            return self._memory.copy(number, first * self.block_size, end * self.block_size)
        finally:
            self._memory.truncate(number, 0)

    def clear(self) -> bool:
        """Forget all cached prefixes, unless there are requests."""
        if self._held:
            return False
        self.forget_cached()
        self._events = [Cleared()] if self.caching else []
        return True

    def take_events(self) -> list[KvChange]:
        """What happened since the last call."""
        events, self._events = self._events, []
        return events

    def check(self) -> None:
        """Raise AssertionError if the books do not balance."""
        everything: list[Held | Prefix] = [*self._held, *self._prefixes]
        blocks = {id(block): block for each in everything for block in each.blocks}
        assert self.used == len(blocks) * self.block_size + sum(held.tail for held in self._held)
        assert self.used <= self.cells
        assert not {held.number for held in self._held} & set(self._numbers)
        assert sorted(blocks) == sorted(id(block) for copies in self._found.values() for block in copies)
        for block in blocks.values():
            assert block.holders == {held for held in self._held if block in held.blocks}
            assert block.prefixes == {prefix for prefix in self._prefixes if block in prefix.blocks}
            assert block.holders or block.kept is not None
        assert all(prefix.blocks for prefix in self._prefixes)
        assert len(self._prefixes) <= self._most_prefixes

    def _chain(self, hashes: Sequence[int]) -> list[Block]:
        """The blocks at the start of `hashes` that one sequence has, rather of one that is in cells."""
        hit = self.lookup(hashes)
        if not hit:
            return []
        copies = self._found[hashes[hit - 1]]
        for block in copies:
            for held in block.holders:
                return held.blocks[:hit]
        prefix = next(iter(copies[0].prefixes))
        self._prefixes.move_to_end(prefix)
        return prefix.blocks[:hit]

    def _bring(self, blocks: list[Block], number: int, first: int = 0) -> bool:
        """Let sequence `number` have these blocks from `first` on; if there is no room, the list ends before."""
        size, at = self.block_size, first
        while at < len(blocks):
            block, end = blocks[at], at + 1
            holder = next(iter(block.holders), None)
            if holder is not None:
                while end < len(blocks) and holder in blocks[end].holders:
                    end += 1
                self._memory.share(holder.number, number, end * size, at * size)
            else:
                kept = block.kept
                assert kept is not None
                while end < len(blocks) and blocks[end].kept is kept and not blocks[end].holders:
                    end += 1
                if not self._memory.put(kept.state, number, at * size, end * size):
                    del blocks[at:]
                    return False
            at = end
        return True

    def _keep(self, number: int, blocks: list[Block]) -> int:
        """Copy blocks that no request holds any more out of the cells; returns how many of all are to be had now."""
        size, most = self.block_size, max(1, _KEPT_TOKENS // self.block_size)
        at = 0
        while at < len(blocks):
            end = at + 1
            if not blocks[at].holders and blocks[at].kept is None:
                # Where segments of the tiers end, too.
                while end < len(blocks) and end % most and not blocks[end].holders and blocks[end].kept is None:
                    end += 1
                state = self._memory.copy(number, at * size, end * size)
                if not state:
                    return at
                kept = KeptBlocks(at, end, state)
                for block in blocks[at:end]:
                    block.kept = kept
            at = end
        return at

    def _remember(self, prefix: Prefix) -> None:
        older = list(prefix.blocks[0].prefixes)
        for block in prefix.blocks:
            block.prefixes.add(prefix)
        self._prefixes[prefix] = None
        # An older prefix that is only a part of this one is not needed.
        for other in older:
            count = len(other.blocks)
            if count <= len(prefix.blocks) and other.blocks[-1] is prefix.blocks[count - 1]:
                self._shorten_to(other, 0)
        while len(self._prefixes) > self._most_prefixes:
            self._shorten_to(next(iter(self._prefixes)), 0)

    def _evictable(self, wanted: Sequence[Block]) -> int:
        """Cells of blocks that only cached prefixes have, less those of `wanted`, which will be used."""
        active = {id(block) for held in self._held for block in held.blocks}
        active.update(map(id, wanted))
        idle = {id(block) for prefix in self._prefixes for block in prefix.blocks} - active
        return len(idle) * self.block_size

    def _shorten(self, prefix: Prefix, cells: int) -> None:
        """Take blocks off the end of a cached prefix until `cells` are free, or it is gone."""
        keep = len(prefix.blocks)
        while keep and cells > 0:
            keep -= 1
            block = prefix.blocks[keep]
            if not block.holders and len(block.prefixes) == 1:
                cells -= self.block_size
        self._shorten_to(prefix, keep)

    def _shorten_to(self, prefix: Prefix, keep: int) -> None:
        lost = prefix.blocks[keep:]
        del prefix.blocks[keep:]
        if not keep:
            del self._prefixes[prefix]
        for block in lost:
            block.prefixes.discard(prefix)
        self._lose(lost)

    def _lose(self, blocks: Sequence[Block]) -> None:
        """Forget those of these blocks that nobody has any more."""
        removed: list[int] = []
        for block in blocks:
            copies = self._found.get(block.hash, [])
            if block.holders or block.prefixes or block not in copies:
                continue
            self.used -= self.block_size
            copies.remove(block)
            if not copies:
                del self._found[block.hash]
                removed.append(block.hash)
        if removed and self.caching:
            self._events.append(Removed(announced(removed)))

    def _store(self, stored: list[int], parent: int | None) -> None:
        if stored and self.caching:
            self._events.append(Stored(announced(stored), announced_parent(parent)))
