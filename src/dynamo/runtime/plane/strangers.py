"""Connections that are closed before their peer has introduced itself: port scanners, wrong tokens, other protocols."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

EVERY = 60.0
"""Seconds between two lines in the log."""


class Strangers:
    """Reports the first one at once, and then at most one per `EVERY` seconds, with the number left out."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._silent_until = float("-inf")
        self._unreported = 0

    def refused(self, peer: str, why: object) -> None:
        now = self._clock()
        if now < self._silent_until:
            self._unreported += 1
            return
        more = f" ({self._unreported} more were refused since the last such line)" if self._unreported else ""
        log.warning("closing the connection with %s: %s%s", peer, why, more)
        self._silent_until, self._unreported = now + EVERY, 0
