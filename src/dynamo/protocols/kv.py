"""What workers and routers tell each other about KV blocks and load.

Hashes are unsigned 64-bit. A block has two names: `block_hash` is the engine's own and opaque, `tokens_hash` is
computed from the block's tokens alone. A sequence hash (see `dynamo.kv.hashing`) names a whole prefix.
"""

from __future__ import annotations

import enum
from typing import Annotated

from msgspec import Meta, Struct

U64 = Annotated[int, Meta(ge=0)]
"""Non-negative; msgpack itself holds nothing above 2**64 - 1."""
Count = Annotated[int, Meta(ge=0)]


class Tier(enum.Enum):
    """Where a block lies, nearest first."""

    Device = "device"
    Host = "host"
    Disk = "disk"
    External = "external"


class Stored(Struct, frozen=True, tag="stored", omit_defaults=True):
    """Consecutive blocks of one chain, as two columns of equal length.

    Without `parent_hash` the chain starts at the first token.
    """

    block_hashes: list[U64]
    tokens_hashes: list[U64]
    parent_hash: U64 | None = None


class Removed(Struct, frozen=True, tag="removed"):
    block_hashes: list[U64]


class Cleared(Struct, frozen=True, tag="cleared"):
    """Everything of the emitting rank is gone, in all tiers."""


class RouterEvent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change of one rank's cache. `event_id` counts from 0 per (worker, rank) without gaps."""

    worker_id: U64
    event_id: U64
    data: Stored | Removed | Cleared
    dp_rank: Count = 0
    tier: Tier = Tier.Device


class RouterEventBatch(Struct, frozen=True):
    events: list[RouterEvent]


class SnapshotRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    worker_id: U64
    dp_rank: Count = 0
    parts: bool = False
    """The answer may be several snapshots, which together are that of one moment: a large one is more than one item."""


class TierSnapshot(Struct, frozen=True, kw_only=True):
    """All blocks of one tier as three columns of equal length.

    Sequence hashes instead of token hashes, because a block may outlive its parent and must still find its place.
    A block at the start of its chain has parent None.
    """

    tier: Tier
    block_hashes: list[U64]
    sequence_hashes: list[U64]
    parents: list[U64 | None]


class KvSnapshot(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The whole cache of one rank after `last_event_id` (None: it has published nothing yet)."""

    worker_id: U64
    tiers: list[TierSnapshot]
    last_event_id: U64 | None = None
    dp_rank: Count = 0


class ActiveLoad(Struct, frozen=True, kw_only=True, omit_defaults=True):
    worker_id: U64
    dp_rank: Count = 0
    active_decode_blocks: Count | None = None
    active_prefill_tokens: Count | None = None
    kv_used_blocks: Count | None = None
    kv_total_blocks: Count | None = None

    @property
    def used_blocks(self) -> int:
        return max(self.kv_used_blocks or 0, self.active_decode_blocks or 0)


class BookingAdded(Struct, frozen=True, kw_only=True, tag="add", omit_defaults=True):
    """Another router sent a request to this worker."""

    router_id: U64
    request_id: str
    worker_id: U64
    dp_rank: Count = 0
    prompt_tokens: Count
    prefill_tokens: Count
    sequence_hashes: list[U64] = []
    extra: bool = False
    """A copy, or one more choice of a request."""
    learn: bool = True
    """It is taken to be cached there from now on, where no events tell."""


class BookingPrefillDone(Struct, frozen=True, kw_only=True, tag="prefill_done"):
    router_id: U64
    request_id: str


class BookingFreed(Struct, frozen=True, kw_only=True, tag="free"):
    router_id: U64
    request_id: str


class BookingBatch(Struct, frozen=True, omit_defaults=True):
    """`router_id` says that this router is alive, and `running` which of its bookings have not ended by now."""

    events: list[BookingAdded | BookingPrefillDone | BookingFreed]
    router_id: U64 | None = None
    running: list[str] | None = None
