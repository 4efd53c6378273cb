"""The blocks that running requests use at each worker: a radix tree over the sequence hashes of their prompts.

The time an operation takes depends on how often prompts diverge, not on how long they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dynamo.kv.hashing import common_blocks
from dynamo.kv.index.slots import fill


class Segment:
    """Blocks `begin` to `end` of a prompt, which each request uses as a whole or not at all."""

    __slots__ = ("begin", "children", "end", "extra", "hashes", "mask", "parent", "requests", "users")

    def __init__(self, hashes: Sequence[int], begin: int, end: int, parent: Segment | None) -> None:
        self.hashes = hashes
        self.begin = begin
        self.end = end
        self.parent = parent
        self.children: dict[int, Segment] = {}
        """By their first block."""
        self.requests = 0
        self.extra = 0
        """Requests that do not count as sharing: prefix copies, and all but one choice of the same client request."""
        self.users: dict[int, int] = {}
        """Requests of each worker, by slot."""
        self.mask = 0
        """The slots of `slots` as bits."""

    def match_end(self, hashes: Sequence[int]) -> int:
        """The end of the blocks in common with a prompt that has our first block."""
        begin = self.begin
        return begin + common_blocks(self.hashes, begin, hashes, begin, min(self.end, len(hashes)) - begin)


class ActiveBlocks:
    def __init__(self) -> None:
        self._root = Segment((), 0, 0, None)

    def segments(self) -> Iterator[Segment]:
        """All segments, parents first. What changes meanwhile may be missed."""
        waiting = list(self._root.children.values())
        while waiting:
            segment = waiting.pop()
            yield segment
            waiting += segment.children.values()

    def shared(self, hashes: Sequence[int], slots: int) -> list[int]:
        """How many leading blocks of a prompt each worker has in use, by slot."""
        depths = [0] * slots
        node, at = self._root, 0
        while at < len(hashes) and (child := node.children.get(hashes[at])):
            if left := node.mask & ~child.mask:
                fill(depths, left, at)
            node, at = child, child.match_end(hashes)
            if at < node.end:
                break
        if node.mask:
            fill(depths, node.mask, at)
        return depths

    def add(self, slot: int, hashes: Sequence[int], extra: bool = False) -> tuple[Segment, int]:
        """Add a request; returns its last segment, for `remove`, and the number of blocks new to the worker."""
        node, at, total = self._root, 0, len(hashes)
        bit, new = 1 << slot, 0
        while at < total:
            child = node.children.get(hashes[at])
            if child is None:
                child = node.children[hashes[at]] = Segment(hashes, at, total, node)
            elif (upto := child.match_end(hashes)) < child.end:
                child = _split(child, upto)
            child.requests += 1
            child.extra += extra
            if child.mask & bit:
                child.users[slot] += 1
            else:
                child.mask |= bit
                child.users[slot] = 1
                new += child.end - at
            node, at = child, child.end
        return node, new

    def remove(self, slot: int, end: Segment, extra: bool = False) -> int:
        """Remove a request; returns how many blocks its worker no longer uses."""
        node, gone = end, 0
        while (parent := node.parent) is not None:
            node.requests -= 1
            node.extra -= extra
            if node.users[slot] > 1:
                node.users[slot] -= 1
            else:
                del node.users[slot]
                node.mask ^= 1 << slot
                gone += node.end - node.begin
            if not node.requests:
                del parent.children[node.hashes[node.begin]]
            elif len(node.children) == 1:
                _merge(node, parent)
            node = parent
        return gone


def _split(node: Segment, at: int) -> Segment:
    """Cut a segment in two and return the first. The second stays the same object: requests hold it as their end."""
    parent = node.parent
    assert parent is not None
    first = Segment(node.hashes, node.begin, at, parent)
    first.requests, first.extra, first.users, first.mask = node.requests, node.extra, {**node.users}, node.mask
    first.children[node.hashes[at]] = node
    parent.children[node.hashes[node.begin]] = first
    node.begin, node.parent = at, first
    return first


def _merge(node: Segment, parent: Segment) -> None:
    """Join a segment with its only child if all its requests continue there."""
    (child,) = node.children.values()
    if child.requests == node.requests:
        parent.children[node.hashes[node.begin]] = child
        child.begin, child.parent = node.begin, parent
