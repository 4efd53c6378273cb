"""The block map: what each sequence of llama.cpp holds, in blocks of tokens, and what of it may be used again.

llama.cpp keeps one cell per token, and several sequences may share a cell. We share whole blocks only, from the start
of a sequence, so a cell belongs to one block, and a block lives as long as a sequence holds it. A finished sequence
stays, as cache, until its cells or its number are needed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from dynamo.kv.block_names import announced, announced_parent
from dynamo.kv.idle_blocks import IdleBlocks
from dynamo.kv.messages import Cleared, KvChange, Removed, Stored
from dynamo.kv.pauses import SessionPause
from dynamo.protocols.engine import SessionName


class SequenceMemory(Protocol):
    def share(self, source: int, target: int, count: int) -> None:
        """Let `target` begin with the first `count` positions of `source`, without copying them."""

    def truncate(self, sequence: int, count: int) -> None:
        """Keep only the first `count` positions."""


class Block:
    """A full block of computed tokens; `hash` is its name, `holders` are the sequences that share it."""

    __slots__ = ("hash", "holders")

    def __init__(self, hash: int) -> None:
        self.hash = hash
        self.holders: set[int] = set()


class Held:
    """One sequence in use or cached: full blocks, then `tail` cells of its own."""

    __slots__ = ("blocks", "number", "session", "tail")

    def __init__(self, number: int) -> None:
        self.number = number
        self.session: SessionName | None = None
        self.blocks: list[Block] = []
        self.tail = 0


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
        caching: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cells = cells
        self.block_size = block_size
        self.used = 0
        self._memory = memory
        self._caching = caching
        self._numbers = list(range(sequences - 1, -1, -1))
        self._held: dict[int, Held] = {}
        self._cached: dict[int, Held] = {}
        """Finished sequences."""
        self._idle = IdleBlocks()
        """Their numbers, in the order in which they give way."""
        self._clock = clock
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
        active = {id(block) for held in self._held.values() for block in held.blocks}
        return len(active) + sum(1 for held in self._held.values() if held.tail)

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

        `promised` cells are left to others. Cached sequences give way, those that are needed soonest last.
        """
        self._idle.now = self._clock()
        hit = self.lookup(hashes)
        source = self._source(hashes[hit - 1]) if hit else None
        needed = tokens - hit * self.block_size
        short = needed + promised - (self.cells - self.used)
        if short > 0 and self._evictable(source.blocks[:hit] if source else []) < short:
            return None
        if source is not None and source.number in self._cached:
            self._idle.touch(source.number)
        if not self._numbers and not self._free_number(source):
            return None
        held = Held(self._numbers.pop())
        if source is not None:
            self._memory.share(source.number, held.number, hit * self.block_size)
            held.blocks = source.blocks[:hit]
            for block in held.blocks:
                block.holders.add(held.number)
        self._held[held.number] = held
        self.reserve(needed + promised)
        return held

    def reserve(self, count: int) -> bool:
        """Free cells until `count` are free; False if requests hold too many."""
        if self.cells - self.used < count:
            self._idle.now = self._clock()
        while self.cells - self.used < count:
            if not self._cached:
                return False
            self._shorten(self._cached[self._idle.next()], count - (self.cells - self.used))
        return True

    def forget_cached(self) -> bool:
        """Drop all cached sequences; whether that freed a cell."""
        used = self.used
        for held in list(self._cached.values()):
            self._drop(held)
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
            block.holders.add(held.number)
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
        del self._held[held.number]
        if held.tail or not held.blocks or not self._caching:
            self._truncate(held, len(held.blocks) if self._caching else 0)
        if not held.blocks:
            self._numbers.append(held.number)
            return
        # An older sequence that is only a part of this one needs no number of its own.
        for number in held.blocks[0].holders & self._cached.keys():
            other = self._cached[number]
            if len(other.blocks) <= len(held.blocks) and held.number in other.blocks[-1].holders:
                self._drop(other)
        self._cached[held.number] = held
        self._idle.now = self._clock()
        self._keep(held)

    def paused(self, pause: SessionPause) -> None:
        """Its session is between two turns."""
        self._idle.paused(pause)

    def find(self, hashes: Sequence[int]) -> tuple[int, int] | None:
        """A sequence that holds the start of `hashes`, and how many blocks of it."""
        hit = self.lookup(hashes)
        return (self._source(hashes[hit - 1]).number, hit) if hit else None

    def clear(self) -> bool:
        """Forget all cached sequences, unless requests hold some."""
        if self._held:
            return False
        self.forget_cached()
        self._events = [Cleared()] if self._caching else []
        return True

    def take_events(self) -> list[KvChange]:
        """What happened since the last call."""
        events, self._events = self._events, []
        return events

    def check(self) -> None:
        """Raise AssertionError if the books do not balance."""
        sequences = self._held | self._cached
        blocks = {id(block): block for held in sequences.values() for block in held.blocks}
        assert self.used == len(blocks) * self.block_size + sum(held.tail for held in sequences.values())
        assert self.used <= self.cells
        assert not self._held.keys() & self._cached.keys()
        assert not sequences.keys() & set(self._numbers)
        assert sorted(blocks) == sorted(id(block) for copies in self._found.values() for block in copies)
        for block in blocks.values():
            assert block.holders == {held.number for held in sequences.values() if block in held.blocks}
        assert all(not held.tail and held.blocks for held in self._cached.values())
        assert len(self._idle) == len(self._cached)
        assert all(number in self._idle for number in self._cached)

    def _source(self, hash: int) -> Held:
        number = next(iter(self._found[hash][0].holders))
        return self._held.get(number) or self._cached[number]

    def _evictable(self, kept: Sequence[Block]) -> int:
        """Cells of blocks that only cached sequences hold, less those of `kept`, which will be used."""
        active = {id(block) for held in self._held.values() for block in held.blocks}
        active.update(map(id, kept))
        idle = {id(block) for held in self._cached.values() for block in held.blocks} - active
        return len(idle) * self.block_size

    def _free_number(self, source: Held | None) -> bool:
        spared = source is not None and source.number in self._cached
        if len(self._cached) <= spared:
            return False
        if spared and source is not None:
            self._idle.remove(source.number)
        self._drop(self._cached[self._idle.next()])
        if spared and source is not None:
            self._keep(source)
        return True

    def _keep(self, held: Held) -> None:
        session = held.session
        self._idle.add([held.number], session.digest if session else "", session.tenant if session else "")

    def _shorten(self, held: Held, cells: int) -> None:
        """Take blocks off the end of a cached sequence until `cells` are free, or it is gone."""
        keep = len(held.blocks)
        while keep and cells > 0:
            keep -= 1
            if len(held.blocks[keep].holders) == 1:
                cells -= self.block_size
        if keep:
            self._truncate(held, keep)
        else:
            self._drop(held)

    def _drop(self, held: Held) -> None:
        del self._cached[held.number]
        self._idle.remove(held.number)
        self._truncate(held, 0)
        self._numbers.append(held.number)

    def _truncate(self, held: Held, keep: int) -> None:
        """Keep `keep` blocks and no tail."""
        self._memory.truncate(held.number, keep * self.block_size)
        self.used -= held.tail
        held.tail = 0
        removed: list[int] = []
        for block in held.blocks[keep:]:
            block.holders.discard(held.number)
            if block.holders:
                continue
            self.used -= self.block_size
            copies = self._found[block.hash]
            copies.remove(block)
            if not copies:
                del self._found[block.hash]
                removed.append(block.hash)
        del held.blocks[keep:]
        if removed and self._caching:
            self._events.append(Removed(announced(removed)))

    def _store(self, stored: list[int], parent: int | None) -> None:
        if stored and self._caching:
            self._events.append(Stored(announced(stored), announced_parent(parent)))
