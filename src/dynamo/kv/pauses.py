"""What a router says of a session between two turns, so that its worker keeps the blocks that are needed soonest.

A session that pauses has a rate of return, in returns per second, which depends on how long it has been idle. A block
is worth what it saves divided by how long it has to be kept: that rate. Blocks of the lowest rate give way first.
"""

from __future__ import annotations

from bisect import bisect_right

from msgspec import Struct

SESSION_PAUSES = "session_pauses"
"""The subject."""
AGES = tuple(round(2 ** (half / 2), 3) for half in range(26))
"""Seconds of idleness at which a rate changes: from 1 s to 1.6 h, each 1.4 times the one before."""

UNKNOWN = 0.5
"""The rate times the idle seconds of a session about which nothing is known: the longest idle gives way first."""


class SessionPause(Struct, frozen=True, kw_only=True, array_like=True):
    """One session after one of its turns."""

    worker_id: int
    session: str
    """A digest of its owner and id, as in `Routing.session`."""
    dp_rank: int = 0
    final: bool = False
    """It will not return: what it holds is free."""
    rates: tuple[float, ...] = ()
    """Below each of `AGES` and above the last; empty if nothing is known."""
    returns_in: float | None = None
    """Exactly when it will return, where somebody knows."""

    def rate(self, idle: float) -> float:
        """How soon it is expected, in returns per second, once it was idle for these seconds."""
        if self.final:
            return 0.0
        if self.returns_in is not None:
            return 1.0 / max(1e-3, self.returns_in - idle)
        return (
            self.rates[min(bisect_right(AGES, idle), len(self.rates) - 1)] if self.rates else UNKNOWN / max(1.0, idle)
        )
