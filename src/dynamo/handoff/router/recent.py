"""What became of the last prompts that were sent to decode workers, for people who look."""

from __future__ import annotations

import enum
from collections import deque

from msgspec import Struct

KEPT = 32


class HandoffStage(enum.Enum):
    PREFILL = "prefill"
    """A prefill worker computes the prompt."""
    TRANSFER = "transfer"
    """It is computed, and the decode worker fetches it."""
    DONE = "done"
    """The decode worker has produced a token from it."""
    GIVEN_BACK = "given back"
    """The request ended or moved on before that."""
    LOCAL = "local"
    """The decode worker computes the prompt itself."""


class HandoffView(Struct, kw_only=True):
    time: float
    """Seconds since 1970."""
    request_id: str
    decode_id: int
    prompt_tokens: int
    uncached_tokens: int
    reason: str
    stage: HandoffStage
    prefill_id: int | None = None
    prefill_seconds: float | None = None
    """The time from the request to the prefill worker's answer."""
    handoff_seconds: float | None = None
    """The time from that answer to the decode worker's first token."""


class RecentHandoffs(deque[HandoffView]):
    """The latest of one model, oldest first. They change while their requests run."""

    def __init__(self) -> None:
        super().__init__(maxlen=KEPT)
