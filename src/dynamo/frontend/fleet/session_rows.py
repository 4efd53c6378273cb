"""The rows of the fleet's document about sessions: the turns of each on one line."""

from __future__ import annotations

from dynamo.frontend.fleet import Document
from dynamo.frontend.measure.session_turns import SessionHistory, SessionTurns


def session_rows(sessions: SessionHistory) -> Document:
    return {f"{owner[:8]}/{digest.hex()}": _row(turns) for (owner, digest), turns in sessions.recent.items()}


def _row(session: SessionTurns) -> Document:
    row: Document = {
        "id": session.id,
        "model": session.model,
        "turns": session.turns,
        "prompt_tokens": session.prompt_tokens,
        "input_tokens": session.input_tokens,
        "cached_tokens": session.cached_tokens,
        "cached_percent": list(session.shares),
        "time": round(session.ended, 3),
    }
    if session.changed:
        row["changed"] = session.changed
    if session.parent:
        row["parent"] = session.parent
    if session.worker is not None:
        row["worker_id"] = str(session.worker)
    if session.turns > 1:
        row["pause_s"] = round(session.pause, 3)
    return row
