"""How a stream is named at the worker that produces it, so that another frontend can go on reading it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class StreamClaim(Struct, array_like=True, frozen=True):
    """What a request says of its stream. It travels beside the request and never reaches the engine."""

    id: str
    """A digest of the owner and of the name that he gave the stream: nobody else can find it."""
    owner: str
    """Whose buffer it takes; workers know owners by a digest too."""
    act: Literal["begin", "describe", "attach"] = "begin"
    """`begin` keeps the stream from now on; `describe` asks for its `StreamFacts`; `attach` continues reading it."""
    facts: bytes = b""
    """For `begin`: what whoever attaches must know. The worker does not look into it."""


class StreamFacts(Struct, frozen=True):
    """What a worker says of a stream that it keeps."""

    facts: bytes
    resumed: bool = False
    """The worker continues what another one began, so its own usage counts a part of the answer as prompt."""
