"""What following the workers' caches counts, which the metrics read."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct, field

from dynamo.kv.messages import Cleared, KvChange, Removed, Stored

OK, BLOCK_NOT_FOUND, INVALID_BLOCK = "ok", "block_not_found", "invalid_block"
"""What became of a KV event, in ai-dynamo's words."""
_EVENT_TYPES: dict[type[KvChange], str] = {Stored: "stored", Removed: "removed", Cleared: "cleared"}


class FollowStats(Struct):
    events: Counter[tuple[str, str]] = field(
        default_factory=lambda: Counter(dict.fromkeys(((name, OK) for name in _EVENT_TYPES.values()), 0))
    )
    """KV events by their type and what became of them."""
    duplicate_stores: int = 0
    """KV events that stored only blocks which the worker was known to hold."""
    snapshots: int = 0
    """Snapshots requested from workers."""
    malformed: int = 0
    """Messages that could not be decoded."""

    def applied(self, change: KvChange, blocks: int) -> None:
        """Count a KV event that the index has applied; `blocks` is how many the rank gained or lost."""
        status = OK
        if type(change) is Stored:
            self.duplicate_stores += not blocks and bool(change.sequence_hashes)
        elif type(change) is Removed and blocks < len(change.sequence_hashes):
            status = BLOCK_NOT_FOUND
        self.events[_EVENT_TYPES[type(change)], status] += 1

    def refused(self, change: KvChange) -> None:
        """Count a KV event that the index has rejected."""
        self.events[_EVENT_TYPES[type(change)], INVALID_BLOCK] += 1
