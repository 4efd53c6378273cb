"""The hand-off of a computed prompt over our own request plane: what the prefill worker offers, and how it is taken."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from dynamo.protocols.instance import Instance

OFFER = "handoff"
"""The key in `disaggregated_params`. Other engines put keys of their own there, such as `kv_transfer_params`."""
CHUNK_BYTES = 1 << 20
MAX_STATE_BYTES = 1 << 40

Count = Annotated[int, Meta(ge=0, le=MAX_STATE_BYTES)]


class HandoffOffer(Struct, kw_only=True, frozen=True):
    """Where a decode worker finds the state of a prompt, and how much of it there is."""

    id: str
    sender: Instance
    """The endpoint that sends it."""
    tokens: Count
    """How many tokens of the prompt's beginning the state covers."""


class TakeRequest(Struct, kw_only=True, frozen=True):
    """Asks the sender of an offer for its state; the answer is a stream of `StateChunk`."""

    id: str


class StateChunk(Struct, array_like=True, frozen=True):
    size: Count
    """The bytes of the whole state."""
    checksum: str
    """The xxh3_64 of this chunk, in hexadecimal digits."""
    data: bytes


def read_offer(params: dict[str, Any]) -> HandoffOffer | None:
    """The offer in `disaggregated_params`; None if there is none. Raises ValueError for a malformed one."""
    found = params.get(OFFER)
    return None if found is None else msgspec.convert(found, HandoffOffer)
