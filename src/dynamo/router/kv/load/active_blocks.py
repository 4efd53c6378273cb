"""The blocks that running requests use at each worker: a radix tree over their chains of sequence hashes.

The time an operation takes depends on how often chains branch, not on how long they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from dynamo.kv.hashing import agreement
from dynamo.router.kv.slots import put


class Segment:
    """Blocks `begin` to `end` of a chain, used as a whole or not at all."""

    __slots__ = ("begin", "chain", "children", "end", "extra", "mask", "parent", "requests", "users")

    def __init__(self, chain: Sequence[int], begin: int, end: int, parent: Segment | None) -> None:
        self.chain = chain
        self.begin = begin
        self.end = end
        self.parent = parent
        self.children: dict[int, Segment] = {}
        """By their first block."""
        self.requests = 0
        self.extra = 0
        """The requests that do not count as sharing: prefix copies, and all but one choice of the same request."""
        self.users: dict[int, int] = {}
        """Requests of each worker, by slot."""
        self.mask = 0
        """The same slots as bits."""

    def agrees(self, chain: Sequence[int]) -> int:
        """Up to where a chain with our first block is the same."""
        begin = self.begin
        return begin + agreement(self.chain, begin, chain, begin, min(self.end, len(chain)) - begin)


class ActiveBlocks:
    def __init__(self) -> None:
        self._root = Segment((), 0, 0, None)

    def __bool__(self) -> bool:
        return bool(self._root.children)

    def shared(self, chain: Sequence[int], slots: int) -> list[int]:
        """How many leading blocks of a chain each worker has in use, by slot."""
        depths = [0] * slots
        node, at = self._root, 0
        while at < len(chain) and (child := node.children.get(chain[at])):
            if left := node.mask & ~child.mask:
                put(depths, left, at)
            node, at = child, child.agrees(chain)
            if at < node.end:
                break
        if node.mask:
            put(depths, node.mask, at)
        return depths

    def add(self, slot: int, chain: Sequence[int], extra: bool = False) -> tuple[Segment, int]:
        """Count a request; returns the last segment of its chain, for `remove`, and the blocks new to the worker."""
        node, at, total = self._root, 0, len(chain)
        bit, fresh = 1 << slot, 0
        while at < total:
            child = node.children.get(chain[at])
            if child is None:
                child = node.children[chain[at]] = Segment(chain, at, total, node)
            elif (upto := child.agrees(chain)) < child.end:
                child = _split(child, upto)
            child.requests += 1
            child.extra += extra
            if child.mask & bit:
                child.users[slot] += 1
            else:
                child.mask |= bit
                child.users[slot] = 1
                fresh += child.end - at
            node, at = child, child.end
        return node, fresh

    def remove(self, slot: int, end: Segment, extra: bool = False) -> int:
        """The request has ended; returns how many blocks its worker no longer uses."""
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
                del parent.children[node.chain[node.begin]]
            elif len(node.children) == 1:
                _merge(node, parent)
            node = parent
        return gone


def _split(node: Segment, at: int) -> Segment:
    """Cut a segment in two and return the first. The second stays the same object: requests hold it as their end."""
    parent = node.parent
    assert parent is not None
    first = Segment(node.chain, node.begin, at, parent)
    first.requests, first.extra, first.users, first.mask = node.requests, node.extra, {**node.users}, node.mask
    first.children[node.chain[at]] = node
    parent.children[node.chain[node.begin]] = first
    node.begin, node.parent = at, first
    return first


def _merge(node: Segment, parent: Segment) -> None:
    """Join a segment with its only child if all its requests continue there."""
    (child,) = node.children.values()
    if child.requests == node.requests:
        parent.children[node.chain[node.begin]] = child
        child.begin, child.parent = node.begin, parent
