"""Whether an event is the next one: the only way to know that none was lost."""

from __future__ import annotations

import enum


class Order(enum.Enum):
    Next = "next"
    Stale = "stale"
    """Seen before."""
    Gap = "gap"
    """An event before it is missing."""


class Cursor:
    """The position in one rank's events. Without one, until a snapshot sets it, only event 0 is next."""

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
        """A snapshot includes everything up to `last`."""
        self.last = last
