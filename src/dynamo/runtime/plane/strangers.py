"""Connections whose peer has not introduced itself: scanners, wrong tokens, other protocols. Few, and not for long."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

MAX_STRANGERS = 256
GREETING_SECONDS = 10.0
"""Time a peer has to introduce itself."""
EVERY = 60.0
"""Seconds between two lines in the log."""

Refuse = Callable[[str], None]
"""Closes a connection, for a reason."""


class Strangers:
    """Reports the first refused one at once, and then at most one per `EVERY` seconds, with the number left out."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        limit: int = MAX_STRANGERS,
        patience: float = GREETING_SECONDS,
    ) -> None:
        self._clock = clock
        self._limit = limit
        self._patience = patience
        self._waiting: dict[object, tuple[asyncio.TimerHandle, Refuse]] = {}
        """In the order in which they came."""
        self._silent_until = float("-inf")
        self._unreported = 0

    def add(self, link: object, refuse: Refuse) -> None:
        """Refuse the connection unless it is removed in time. The oldest is refused where there are too many."""
        if len(self._waiting) >= self._limit:
            _, refuse_oldest = next(iter(self._waiting.values()))
            refuse_oldest("too many connections have not introduced themselves")
        late = f"it has not introduced itself in {self._patience:g} s"
        self._waiting[link] = (asyncio.get_running_loop().call_later(self._patience, refuse, late), refuse)

    def remove(self, link: object) -> None:
        """It has introduced itself, or is gone."""
        if waiting := self._waiting.pop(link, None):
            waiting[0].cancel()

    def refused(self, peer: str, why: object) -> None:
        now = self._clock()
        if now < self._silent_until:
            self._unreported += 1
            return
        more = f" ({self._unreported} more were refused since the last such line)" if self._unreported else ""
        log.warning("closing the connection with %s: %s%s", peer, why, more)
        self._silent_until, self._unreported = now + EVERY, 0
