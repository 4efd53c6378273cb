"""Who is at the other end of a connection: the proof that both know the plane's token, and those who have not given it.

    client → worker   HELLO with a nonce
    worker → client   HELLO with a nonce of its own
    client → worker   PROOF: HMAC of both nonces under the token
    worker → client   PROOF: the same, for its own side

The token itself is never sent. A recorded exchange is worthless on another connection, whose nonces differ. The client
proves first: a stranger who only connects gets nothing that depends on the token.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import os
import time
from collections.abc import Callable
from typing import Literal

Side = Literal["client", "worker"]

NONCE_BYTES = 32
log = logging.getLogger(__name__)
MAX_PENDING_HANDSHAKES = 256
GREETING_SECONDS = 10.0
"""Time a peer has to introduce itself."""
EVERY = 60.0
"""Seconds between two lines in the log."""
Reject = Callable[[str], None]
"""Closes a connection, for a reason."""


def nonce() -> bytes:
    return os.urandom(NONCE_BYTES)


def proof(token: str, side: Side, client_nonce: bytes, worker_nonce: bytes) -> bytes:
    message = b"dynamo request plane\0" + side.encode() + b"\0" + client_nonce + worker_nonce
    return hmac.digest(token.encode(), message, hashlib.sha256)


def is_proof(sent: bytes, token: str, side: Side, client_nonce: bytes, worker_nonce: bytes) -> bool:
    return hmac.compare_digest(sent, proof(token, side, client_nonce, worker_nonce))


class PendingHandshakes:
    """Connections whose peer has not introduced itself: scanners, wrong tokens, other protocols. Few, not for long.

    Reports the first rejected one at once, and then at most one per `EVERY` seconds, with the number left out."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        limit: int = MAX_PENDING_HANDSHAKES,
        patience: float = GREETING_SECONDS,
    ) -> None:
        self._clock = clock
        self._limit = limit
        self._patience = patience
        self._waiting: dict[object, tuple[asyncio.TimerHandle, Reject]] = {}
        """In the order in which they came."""
        self._silent_until = float("-inf")
        self._unreported = 0

    def add(self, link: object, reject: Reject) -> None:
        """Reject the connection unless it is removed in time. The oldest is rejected where there are too many."""
        if len(self._waiting) >= self._limit:
            _, reject_oldest = next(iter(self._waiting.values()))
            reject_oldest("too many connections have not introduced themselves")
        late = f"it has not introduced itself in {self._patience:g} s"
        self._waiting[link] = (asyncio.get_running_loop().call_later(self._patience, reject, late), reject)

    def remove(self, link: object) -> None:
        """It has introduced itself, or is gone."""
        if waiting := self._waiting.pop(link, None):
            waiting[0].cancel()

    def rejected(self, peer: str, why: object) -> None:
        now = self._clock()
        if now < self._silent_until:
            self._unreported += 1
            return
        more = f" ({self._unreported} more were refused since the last such line)" if self._unreported else ""
        log.warning("closing the connection with %s: %s%s", peer, why, more)
        self._silent_until, self._unreported = now + EVERY, 0
