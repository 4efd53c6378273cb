"""Paged KV blocks with a prefix cache, in the order of life vLLM's block pool gives them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from msgspec import Struct


class BlockStored(Struct, frozen=True, tag=True):
    """Consecutive blocks of one chain became reusable; `parent_hash` is the block before the first of them."""

    block_hashes: list[int]
    parent_hash: int | None
    token_ids: list[int]
    local_hashes: list[int]


class BlockRemoved(Struct, frozen=True, tag=True):
    block_hashes: list[int]


class AllBlocksCleared(Struct, frozen=True, tag=True):
    pass


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared


class BlockPool:
    """Who holds which block, and what free blocks still remember.

    A free block keeps its content until it is needed for something else. Blocks that remember nothing go first, then
    the one free for longest.
    Two requests that compute the same block hold a copy each. Events tell of the first copy and the loss of the last,
    so that whoever replays them as a set knows exactly what can be reused.
    """

    def __init__(self, total: int, *, caching: bool = True, record_events: bool = True) -> None:
        self.total = total
        self.caching = caching
        self._record_events = record_events and caching
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(total))
        self._holders = [0] * total
        self._hash_of: list[int | None] = [None] * total
        self._copies: dict[int, list[int]] = {}
        self._events: list[KvEvent] = []

    def record_events(self) -> None:
        """Tell of what happens from now on."""
        self._record_events = self.caching

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        return self.total - len(self._free)

    def cached_hashes(self) -> set[int]:
        return set(self._copies)

    def lookup(self, hashes: Sequence[int], limit: int) -> list[int]:
        """The blocks of the longest cached run at the start of `hashes`, at most `limit` of them."""
        found: list[int] = []
        if not self.caching:
            return found
        copies = self._copies
        for index in range(min(limit, len(hashes))):
            blocks = copies.get(hashes[index])
            if blocks is None:
                break
            found.append(blocks[0])
        return found

    def idle(self, blocks: Sequence[int]) -> int:
        """How many of these would be taken out of the free ones by holding them."""
        holders = self._holders
        return sum(1 for block in blocks if not holders[block])

    def hold(self, blocks: Sequence[int]) -> None:
        """One more request uses these cached blocks."""
        holders = self._holders
        for block in blocks:
            if not holders[block]:
                del self._free[block]
            holders[block] += 1

    def allocate(self, count: int) -> list[int]:
        """`count` blocks to write to, which forget what they held; the caller has checked `free`."""
        if count > len(self._free):
            raise ValueError(f"{count} blocks asked of {len(self._free)} free ones")
        blocks = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            if self._hash_of[block] is not None:
                self._forget(block)
            self._holders[block] = 1
            blocks.append(block)
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        """Give back a request's blocks, the last one first: the tail of a chain is worth less than its head."""
        holders, free, hash_of = self._holders, self._free, self._hash_of
        blank = []
        for block in reversed(blocks):
            holders[block] -= 1
            if not holders[block]:
                free[block] = None
                if hash_of[block] is None:
                    blank.append(block)
        for block in reversed(blank):
            free.move_to_end(block, last=False)

    def store(
        self,
        blocks: Sequence[int],
        hashes: Sequence[int],
        parent: int | None,
        token_ids: Sequence[int],
        local: Sequence[int],
    ) -> None:
        """These blocks are full and may be found from now on."""
        if not self.caching:
            return
        first_copy = []
        for block, block_hash in zip(blocks, hashes, strict=True):
            self._hash_of[block] = block_hash
            copies = self._copies.get(block_hash)
            if copies is None:
                self._copies[block_hash] = [block]
            else:
                copies.append(block)
            first_copy.append(copies is None)
        if self._record_events:
            self._tell_stored(first_copy, hashes, parent, token_ids, local)

    def clear(self) -> bool:
        """Forget all content, unless some block is in use."""
        if self.used:
            return False
        self._copies.clear()
        self._hash_of = [None] * self.total
        if self._record_events:
            self._events.append(AllBlocksCleared())
        return True

    def take_events(self) -> list[KvEvent]:
        """What happened since the last call."""
        events = self._events
        if events:
            self._events = []
        return events

    def check(self) -> None:
        """Raise AssertionError if the books do not balance."""
        for block, holders in enumerate(self._holders):
            assert holders >= 0, f"block {block} has {holders} holders"
            assert (holders == 0) == (block in self._free), f"block {block} is both held and free, or neither"
        by_hash = sorted(
            (block_hash, block) for block, block_hash in enumerate(self._hash_of) if block_hash is not None
        )
        assert by_hash == sorted((block_hash, block) for block_hash, blocks in self._copies.items() for block in blocks)
        assert all(self._copies.values()), "a hash without a block"

    def _forget(self, block: int) -> None:
        block_hash = self._hash_of[block]
        assert block_hash is not None
        self._hash_of[block] = None
        copies = self._copies[block_hash]
        copies.remove(block)
        if not copies:
            del self._copies[block_hash]
            if self._record_events:
                self._events.append(BlockRemoved([block_hash]))

    def _tell_stored(
        self,
        first_copy: list[bool],
        hashes: Sequence[int],
        parent: int | None,
        token_ids: Sequence[int],
        local: Sequence[int],
    ) -> None:
        """One event per run of blocks nobody had before."""
        size = len(token_ids) // len(hashes)
        at = 0
        while at < len(hashes):
            if not first_copy[at]:
                at += 1
                continue
            end = at + 1
            while end < len(hashes) and first_copy[end]:
                end += 1
            self._events.append(
                BlockStored(
                    list(hashes[at:end]),
                    hashes[at - 1] if at else parent,
                    list(token_ids[at * size : end * size]),
                    list(local[at:end]),
                )
            )
            at = end
