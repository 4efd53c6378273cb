"""Paged KV blocks with a prefix cache, in the order of life vLLM's block pool gives them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from dynamo.kv.idle_blocks import IdleBlocks
from dynamo.kv.messages import Cleared, KvChange, Removed, Stored

from .tiers import MockTiers


class BlockPool:
    """Which blocks are in use, and what free blocks still hold.

    A free block keeps its content until it is needed for something else. Empty blocks go first, then the one that has
    been free for longest; where sessions are known, `IdleBlocks` decides. Two requests that compute the same block hold
    a copy each. Events announce the first copy and the loss of the last one, so a set that follows them is exactly what
    can be reused.
    """

    def __init__(
        self, total: int, *, caching: bool = True, record_events: bool = True, tiers: MockTiers | None = None
    ) -> None:
        """What leaves the cache is offered to `tiers`."""
        self.total = total
        self._tiers = tiers
        self.caching = caching
        self._record_events = record_events and caching
        self._blank: list[int] = []
        """Free blocks that hold nothing, those that are taken first at the end; beside them the ones never used yet."""
        self.idle = IdleBlocks()
        """Free blocks that may hold something."""
        self._holders: list[int] = []
        self._hash_of: list[int | None] = []
        """It grows with the blocks used: a simulation has thousands of pools, and most are never full."""
        self._found: dict[int, int] = {}
        """Where each cached hash is found: in the first of its copies."""
        self._copies: dict[int, list[int]] = {}
        """The others, of those that have several."""
        self._events: list[KvChange] = []

    def record_events(self) -> None:
        """Record changes from now on for `take_events`."""
        self._record_events = self.caching

    @property
    def free(self) -> int:
        return self.total - len(self._holders) + len(self._blank) + len(self.idle)

    @property
    def used(self) -> int:
        return len(self._holders) - len(self._blank) - len(self.idle)

    def cached_hashes(self) -> set[int]:
        return set(self._found)

    def lookup(self, hashes: Sequence[int], limit: int) -> list[int]:
        """The blocks of the longest cached run at the start of `hashes`, at most `limit` of them."""
        found: list[int] = []
        if not self.caching:
            return found
        find = self._found.get
        for block_hash in islice(hashes, limit):
            block = find(block_hash)
            if block is None:
                break
            found.append(block)
        return found

    def idle_among(self, blocks: Sequence[int]) -> int:
        """How many of these would be taken out of the free ones by holding them."""
        holders = self._holders
        return sum(1 for block in blocks if not holders[block])

    def hold(self, blocks: Sequence[int]) -> None:
        """One more request uses these cached blocks."""
        holders, used_again = self._holders, self.idle.remove
        for block in blocks:
            if not holders[block]:
                used_again(block)
            holders[block] += 1

    def allocate(self, count: int) -> list[int]:
        """`count` blocks to write to, which forget what they held; the caller has checked `free`."""
        if count > self.free:
            raise ValueError(f"{count} blocks asked of {self.free} free ones")
        holders, hash_of = self._holders, self._hash_of
        found, copies = self._found, self._copies
        blocks = self._empty(count)
        if count > len(blocks):
            used = self.idle.take(count - len(blocks))
            blocks += used
        else:
            used = []
        gone = []
        for block in used:
            holders[block] = 1
            block_hash = hash_of[block]
            if block_hash is None:
                continue
            hash_of[block] = None
            if block_hash in copies:
                self._lose_copy(block, block_hash)
            else:
                del found[block_hash]
                gone.append(block_hash)
        if gone:
            if self._tiers is not None:
                self._tiers.evicted(gone)
            if self._record_events:
                self._events.append(Removed(gone))
        return blocks

    def _empty(self, count: int) -> list[int]:
        """Blocks that hold nothing, at most `count`, taken from the free ones."""
        blank, holders = self._blank, self._holders
        blocks = [blank.pop() for _ in range(min(count, len(blank)))]
        for block in blocks:
            holders[block] = 1
        first = len(holders)
        fresh = min(count - len(blocks), self.total - first)
        holders += [1] * fresh
        self._hash_of += [None] * fresh
        return blocks + list(range(first, first + fresh))

    def release(self, blocks: Sequence[int], session: str = "", tenant: str = "") -> None:
        """Give back a request's blocks, the last one first: the tail of a chain is worth less than its head."""
        holders, hash_of = self._holders, self._hash_of
        blank, idle = [], []
        for block in reversed(blocks):
            holders[block] -= 1
            if not holders[block]:
                if hash_of[block] is None:
                    blank.append(block)
                else:
                    idle.append(block)
        self.idle.add(idle, session, tenant)
        self._blank += reversed(blank)

    def store(self, blocks: Sequence[int], hashes: list[int], parent: int | None) -> None:
        """These blocks are full and may be found from now on."""
        if not self.caching:
            return
        if self._tiers is not None:
            self._tiers.cached(hashes, parent)
        found, hash_of = self._found, self._hash_of
        for block, block_hash in zip(blocks, hashes, strict=True):
            hash_of[block] = block_hash
        if found.keys().isdisjoint(hashes):
            found.update(zip(hashes, blocks, strict=True))
            if self._record_events:
                self._events.append(Stored(hashes, parent))
            return
        fresh = [self._gain(block, block_hash) for block, block_hash in zip(blocks, hashes, strict=True)]
        if self._record_events:
            self._record_stored(fresh, hashes, parent)

    def clear(self) -> bool:
        """Forget all content, unless some block is in use."""
        if self.used:
            return False
        self._found.clear()
        self._copies.clear()
        self._hash_of = [None] * len(self._hash_of)
        if self._tiers is not None:
            self._tiers.clear()
        if self._record_events:
            self._events.append(Cleared())
        return True

    def take_events(self) -> list[KvChange]:
        """What happened since the last call."""
        events = self._events
        if events:
            self._events = []
        return events

    def check(self) -> None:
        """Raise AssertionError if the books do not balance."""
        for block, holders in enumerate(self._holders):
            assert holders >= 0, f"block {block} has {holders} holders"
            places = (holders > 0) + (block in self.idle) + self._blank.count(block)
            assert places == 1, f"block {block} is in {places} places"
        kept = {block: block_hash for block, block_hash in enumerate(self._hash_of) if block_hash is not None}
        copies = [(block_hash, block) for block_hash, blocks in self._copies.items() for block in blocks]
        assert sorted(kept.items()) == sorted((block, name) for name, block in [*self._found.items(), *copies])
        assert all(self._copies.values()), "an empty list of copies"
        assert self._copies.keys() <= self._found.keys(), "a copy of what is not found"

    def _gain(self, block: int, block_hash: int) -> bool:
        """Note one more copy; True if it is the first."""
        if self._found.setdefault(block_hash, block) == block:
            return True
        self._copies.setdefault(block_hash, []).append(block)
        return False

    def _lose_copy(self, block: int, block_hash: int) -> None:
        copies = self._copies[block_hash]
        if self._found[block_hash] == block:
            self._found[block_hash] = copies.pop(0)
        else:
            copies.remove(block)
        if not copies:
            del self._copies[block_hash]

    def _record_stored(self, fresh: list[bool], hashes: list[int], parent: int | None) -> None:
        """One event per run of blocks of which there was no copy."""
        at = 0
        while at < len(hashes):
            if not fresh[at]:
                at += 1
                continue
            end = at + 1
            while end < len(hashes) and fresh[end]:
                end += 1
            self._events.append(Stored(hashes[at:end], hashes[at - 1] if at else parent))
            at = end


def merge_removals(changes: list[KvChange]) -> list[KvChange]:
    """The same changes, with blocks removed one after the other as one change."""
    merged: list[KvChange] = []
    removed: list[int] | None = None
    for change in changes:
        if not isinstance(change, Removed):
            removed = None
            merged.append(change)
        elif removed is None:
            removed = change.sequence_hashes.copy()
            merged.append(Removed(removed))
        else:
            removed += change.sequence_hashes
    return merged
