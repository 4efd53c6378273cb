"""Whether an event is the next one: the only way to know that nothing was lost on the way."""

from __future__ import annotations

import enum


class Order(enum.Enum):
    Next = "next"
    Stale = "stale"
    """Seen before: drop it."""
    Gap = "gap"
    """Something before it is missing: only a snapshot helps."""


class Cursor:
    """One per (worker, rank). Starts without a position: until a snapshot gives one, only event 0 is next."""

    def __init__(self) -> None:
        self.last: int | None = None

    def see(self, event_id: int) -> Order:
        """Judge an event, and move on if it is the next one."""
        expected = 0 if self.last is None else self.last + 1
        if event_id == expected:
            self.last = event_id
            return Order.Next
        return Order.Stale if event_id < expected else Order.Gap

    def reset(self, last: int | None) -> None:
        """A snapshot was applied that includes everything up to `last`."""
        self.last = last
