"""The reservations that a program has not freed yet; those it never frees expire."""

from __future__ import annotations

import logging

from dynamo.router.placement import Placement

log = logging.getLogger(__name__)

EXPIRY = 300.0


class ProgramReservations:
    """By the program's own ids. A reservation that was not touched for EXPIRY seconds is released."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[Placement, float]] = {}
        """With when it was last touched, least recent first."""

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._held

    def add(self, request_id: str, placement: Placement, now: float) -> None:
        self._held[request_id] = (placement, now)

    def first_token(self, request_id: str, now: float) -> None:
        if held := self._held.pop(request_id, None):
            self._held[request_id] = (held[0], now)
            held[0].first_token()

    def free(self, request_id: str) -> None:
        if held := self._held.pop(request_id, None):
            held[0].release()

    def expire(self, now: float) -> None:
        for request_id, (_, since) in list(self._held.items()):
            if now - since < EXPIRY:
                break
            log.warning("request '%s' was booked and never freed: it no longer counts", request_id)
            self.free(request_id)
