"""`RadixTree`: which worker holds which blocks, for programs that feed KV events to an index of their own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

Rank = tuple[int, int]
"""(worker id, dp rank)."""


class StoredBlock(Struct):
    block_hash: int
    tokens_hash: int


class StoredData(Struct, kw_only=True):
    parent_hash: int | None = None
    blocks: list[StoredBlock]


class RemovedData(Struct):
    block_hashes: list[int]


class EventData(Struct, kw_only=True):
    """One of the two; a cache that was cleared is the string `cleared` instead."""

    stored: StoredData | None = None
    removed: RemovedData | None = None


class RadixEvent(Struct, kw_only=True):
    event_id: int
    data: EventData | str
    dp_rank: int = 0


class OverlapScores:
    """How many leading blocks of a prompt each rank holds. Access frequencies are not counted."""

    def __init__(self, scores: dict[Rank, int]) -> None:
        self.scores = scores
        self.frequencies: list[int] = []


class _Node:
    """A block of tokens after those above it, and the ranks that hold it, each under its own hash."""

    __slots__ = ("children", "holders", "parent", "tokens_hash")

    def __init__(self, tokens_hash: int, parent: _Node | None) -> None:
        self.tokens_hash = tokens_hash
        self.parent = parent
        self.children: dict[int, _Node] = {}
        self.holders: dict[Rank, int] = {}


class RadixTree:
    """Prompts are found by the hashes of their blocks' tokens; workers name blocks by hashes of their own.

    Any thread may call it.
    """

    def __init__(self) -> None:
        self._root = _Node(0, None)
        self._held: dict[Rank, dict[int, _Node]] = {}
        self._lock = threading.Lock()

    def apply_event(self, worker_id: int, kv_cache_event_bytes: bytes) -> None:
        """Apply one event, as JSON; a ValueError says what is wrong with it."""
        try:
            event = msgspec.json.decode(kv_cache_event_bytes, type=RadixEvent)
        except msgspec.DecodeError as error:
            raise ValueError(f"not a KV cache event: {error}") from None
        rank, data = (worker_id, event.dp_rank), event.data
        with self._lock:
            if isinstance(data, str):
                if data != "cleared":
                    raise ValueError(f"not a KV cache event: unknown data '{data}'")
                self._clear(rank)
                return
            if data.stored:
                self._store(rank, data.stored)
            if data.removed:
                for block in data.removed.block_hashes:
                    self._remove(rank, block)

    def find_matches(self, sequence: Sequence[int], early_exit: bool = False) -> OverlapScores:
        """`sequence` is the prompt's blocks by the hashes of their tokens; `early_exit` ends where one rank is left."""
        with self._lock:
            node, scores = self._root, dict[Rank, int]()
            holding: set[Rank] | None = None
            for depth, tokens_hash in enumerate(sequence, 1):
                below = node.children.get(tokens_hash)
                if below is None:
                    break
                node = below
                holding = set(node.holders) if holding is None else holding & node.holders.keys()
                if not holding:
                    break
                scores.update(dict.fromkeys(holding, depth))
                if early_exit and len(holding) == 1:
                    break
            return OverlapScores(scores)

    def remove_worker(self, worker_id: int) -> None:
        """Forget a worker with all its ranks."""
        with self._lock:
            for rank in [rank for rank in self._held if rank[0] == worker_id]:
                self._clear(rank)
                del self._held[rank]

    def clear_all_blocks(self, worker_id: int) -> None:
        """Forget a worker's blocks, of all its ranks."""
        with self._lock:
            for rank in self._held:
                if rank[0] == worker_id:
                    self._clear(rank)

    def dump_tree_as_events(self) -> list[str]:
        """The events that would store each held block, parents before children, as JSON."""
        with self._lock:
            return [msgspec.json.encode(event).decode() for event in self._dump()]

    def _dump(self) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        level = list(self._root.children.values())
        while level:
            for node in level:
                for rank, block in node.holders.items():
                    parent = node.parent.holders.get(rank) if node.parent else None
                    stored = {
                        "parent_hash": parent,
                        "blocks": [{"block_hash": block, "tokens_hash": node.tokens_hash}],
                    }
                    event = {"event_id": len(events), "dp_rank": rank[1], "data": {"stored": stored}}
                    events.append({"worker_id": rank[0], "event": event})
            level = [child for node in level for child in node.children.values()]
        return events

    def _store(self, rank: Rank, stored: StoredData) -> None:
        held = self._held.setdefault(rank, {})
        node = self._root
        if stored.parent_hash is not None:
            found = held.get(stored.parent_hash)
            if found is None:
                return  # Nothing can be said of blocks whose beginning is not known.
            node = found
        for block in stored.blocks:
            below = node.children.get(block.tokens_hash)
            if below is None:
                below = node.children[block.tokens_hash] = _Node(block.tokens_hash, node)
            if (old := below.holders.get(rank)) is not None and held.get(old) is below:
                del held[old]
            below.holders[rank] = block.block_hash
            held[block.block_hash] = node = below

    def _remove(self, rank: Rank, block: int) -> None:
        node = self._held.get(rank, {}).pop(block, None)
        if node is not None and node.holders.get(rank) == block:
            del node.holders[rank]
            _prune(node)

    def _clear(self, rank: Rank) -> None:
        for block in list(self._held.get(rank, ())):
            self._remove(rank, block)


def _prune(node: _Node) -> None:
    """Remove nodes that no worker holds and that have no children."""
    while node.parent is not None and not node.holders and not node.children:
        node.parent.children.pop(node.tokens_hash, None)
        node = node.parent
