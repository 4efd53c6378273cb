"""Segments in memory, within a limit of bytes; the least recently used give way."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from dynamo.kv.messages import KvChange
from dynamo.kv.tiers.segment import KvSegment


class MemoryTier:
    def __init__(
        self,
        limit: int,
        changed: Callable[[KvChange], None] = lambda change: None,
        *,
        displaced: Callable[[KvSegment], None] = lambda segment: None,
    ) -> None:
        """`changed` is called with each change of the blocks held, `displaced` with a segment that is to give way."""
        self.limit = limit
        self._changed = changed
        self._displaced = displaced
        self.used = 0
        self._segments: OrderedDict[int, KvSegment] = OrderedDict()

    def __contains__(self, key: int) -> bool:
        return key in self._segments

    def __len__(self) -> int:
        return len(self._segments)

    def listen(self, changed: Callable[[KvChange], None]) -> None:
        """Call `changed` for all that is held, and for each change from now on."""
        self._changed = changed
        for segment in self._segments.values():
            changed(segment.header.stored())

    def get(self, key: int) -> KvSegment | None:
        segment = self._segments.get(key)
        if segment is not None:
            self._segments.move_to_end(key)
        return segment

    def put(self, segment: KvSegment) -> bool:
        """Add a segment; False if it is held already, or larger than the limit."""
        if segment.key in self._segments:
            self._segments.move_to_end(segment.key)
            return False
        if segment.size > self.limit:
            return False
        while self.used + segment.size > self.limit:
            oldest = next(iter(self._segments.values()))
            self._displaced(oldest)
            del self._segments[oldest.key]
            self.used -= oldest.size
            self._changed(oldest.header.removed())
        self._segments[segment.key] = segment
        self.used += segment.size
        self._changed(segment.header.stored())
        return True

    def clear(self) -> None:
        self._segments.clear()
        self.used = 0
