"""The frames of a connection in the log, at level trace. A connection opened at another level pays nothing for it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from dynamo.runtime.logging import TRACE
from dynamo.runtime.plane.frames import FrameDecoder, Kind

log = logging.getLogger(__name__)

SHOWN = 500
"""Characters of a frame's body."""
SECRET = (Kind.HELLO, Kind.PROOF)
"""Their bodies are not shown."""


def is_traced() -> bool:
    return log.isEnabledFor(TRACE)


class TracedDecoder(FrameDecoder):
    def __init__(self, peer: str) -> None:
        super().__init__()
        self._peer = peer

    def feed(self, data: bytes) -> list[tuple[int, Any]]:
        decoded = super().feed(data)
        for kind, body in decoded:
            _log("from", self._peer, kind, body)
        return decoded


def traced_write(write: Callable[[bytes], None], peer: str) -> Callable[[bytes], None]:
    frames = FrameDecoder()

    def traced(data: bytes) -> None:
        for kind, body in frames.feed(data):
            _log("to", peer, kind, body)
        write(data)

    return traced


def _log(direction: str, peer: str, kind: int, body: Any) -> None:
    shown = "" if body is None or kind in SECRET else f" {body!r}"[:SHOWN]
    log.log(TRACE, "%s %s: %s%s", direction, peer, Kind(kind).name, shown)
