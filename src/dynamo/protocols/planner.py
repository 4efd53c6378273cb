"""What a planner says, for people who look at the fleet."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

SUBJECT = "planner"
"""Followed by the planner's namespace. Lossy: each message has the last sentences."""
MOST_SENTENCES = 16
LONGEST_SENTENCE = 600
"""Characters."""


class PlannerSentence(Struct, frozen=True, kw_only=True):
    time: float
    """Seconds since 1970, when it was said first."""
    text: Annotated[str, Meta(max_length=LONGEST_SENTENCE)]


class PlannerReport(Struct, frozen=True, kw_only=True):
    """Sent after each decision, and so every few seconds."""

    planner: Annotated[str, Meta(max_length=64)]
    """Differs for each process."""
    advisory: bool
    interval: Annotated[float, Meta(ge=0)]
    """Seconds between two decisions: a planner that is silent for much longer has ended."""
    sentences: Annotated[list[PlannerSentence], Meta(max_length=MOST_SENTENCES)]
    """Oldest first; one that was said several times in a row is there once."""


def subject(namespace: str) -> str:
    return f"{SUBJECT}.{namespace}"
