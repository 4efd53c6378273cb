"""The turns of each session that have ended: how many, how much of each was cached, and how long its pauses are."""

from __future__ import annotations

import time

from msgspec import Struct

from dynamo.frontend.measure.request_record import RequestRecord
from dynamo.router.sessions.table import Key, SessionTable, key_of

LONGEST_SHOWN = 64
"""Characters of an id that are kept."""
TURNS_SHOWN = 16
MOST_REMEMBERED = 16_384
"""Turns are counted for people: fewer sessions than the routers bind."""
RECENT = 24
"""Sessions shown: those whose turns ended last."""


class SessionTurns(Struct):
    id: str
    parent: str
    model: str
    ended: float
    """When the last turn ended, in seconds since 1970."""
    turns: int = 0
    worker: int | None = None
    """The one of the last turn."""
    prompt_tokens: int = 0
    """The length of the last prompt."""
    input_tokens: int = 0
    cached_tokens: int = 0
    pause: float = 0.0
    """Seconds between turns; later ones count more."""
    changed: str = ""
    """What the last turn had lost of its cache by a change of the prompt."""
    shares: bytes = b""
    """The percentage of the prompt that was cached, for each of the last turns."""


class SessionHistory:
    """All sessions of this process that are remembered."""

    def __init__(self) -> None:
        self.recent: dict[Key, SessionTurns] = {}
        """The one that was used last comes last."""
        self._all: SessionTable[SessionTurns] = SessionTable(MOST_REMEMBERED)

    def __len__(self) -> int:
        return len(self._all)

    def ended(self, record: RequestRecord) -> None:
        """Count one turn, if the request is one of a session and reached a model."""
        session = record.session
        if session is None or not record.deliveries:
            return
        now, key, model, prompt = time.time(), key_of(session), record.model, record.input_tokens
        cached = min(record.cached_tokens, prompt)
        known = self._all.get(key)
        if known is None:
            known = SessionTurns(session.id[:LONGEST_SHOWN], session.parent[:LONGEST_SHOWN], model, now)
            self._all.add(key, known)
        else:
            pause = max(0.0, now - record.age - known.ended)
            known.pause = pause if known.turns == 1 else known.pause + (pause - known.pause) / 4
            self._all.used(key)
            self.recent.pop(key, None)
        known.ended, known.model = now, model
        known.turns += 1
        known.worker = record.deliveries[0].instance_id
        known.prompt_tokens = prompt
        known.input_tokens += prompt
        known.cached_tokens += cached
        known.shares = (known.shares + bytes((100 * cached // prompt if prompt else 0,)))[-TURNS_SHOWN:]
        known.changed = str(record.change) if record.change else ""
        record.turn = known.turns
        self.recent[key] = known
        if len(self.recent) > RECENT:
            del self.recent[next(iter(self.recent))]
        if session.final:
            self._all.remove(key)
