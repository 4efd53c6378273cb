"""The messages between workers and routers about KV blocks and load, and the subjects that they are published on.

A block is identified by its sequence hash (`dynamo.kv.hashing`): unsigned 64-bit, over all tokens up to its end.
"""

from __future__ import annotations

import enum
from typing import Annotated, Final, Literal, NamedTuple

from msgspec import Meta, Struct

from dynamo.protocols.worker_name import worker_name

U64 = Annotated[int, Meta(ge=0)]
"""Non-negative; msgpack itself holds nothing above 2**64 - 1."""
Count = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]

KV_WIRE_VERSION: Final = 2
"""Events and snapshots without this version fail to decode: builds that differ never misread them."""
KV_EVENTS = "kv-events"
KV_METRICS = "kv_metrics"
RESERVATIONS = "active_sequences_events"
SNAPSHOT_ENDPOINT = "kv_snapshot"
LOAD_REPORT_SECONDS = 5.0
"""How often a worker reports its load although it has not changed: a message may have been lost."""
ComponentName = tuple[str, str]
"""Namespace and component."""


class WorkerRank(NamedTuple):
    """One data-parallel rank of one worker: what a request is sent to."""

    worker_id: int
    dp_rank: int = 0

    @property
    def named(self) -> tuple[str, int]:
        """The name and the rank, for messages."""
        return worker_name(self.worker_id), self.dp_rank


class Tier(enum.Enum):
    """Where a block lies, nearest first."""

    Device = "device"
    Host = "host"
    Disk = "disk"
    External = "external"


class Stored(Struct, frozen=True, tag="stored", omit_defaults=True):
    """Consecutive blocks of a prompt were added; `parent` is the block before the first, None at the prompt's start."""

    sequence_hashes: list[U64]
    parent: U64 | None = None


class Removed(Struct, frozen=True, tag="removed"):
    sequence_hashes: list[U64]


class Cleared(Struct, frozen=True, tag="cleared"):
    """All blocks of the rank are gone, in all tiers."""


KvChange = Stored | Removed | Cleared
"""One change of a rank's cache. No block is stored again while it is held, or removed while it is not."""


class RouterEvent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A numbered change. `event_id` counts from 0 per (worker, rank) without gaps."""

    worker_id: U64
    event_id: U64
    data: KvChange
    dp_rank: Count = 0
    tier: Tier = Tier.Device


class RouterEventBatch(Struct, frozen=True, kw_only=True):
    version: Literal[2]
    events: list[RouterEvent]


class SnapshotRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    worker_id: U64
    dp_rank: Count = 0
    parts: bool = False
    """Whether the answer may be several snapshots that are parts of one: a large one needs more than one item."""


class TierSnapshot(Struct, frozen=True, kw_only=True):
    """All blocks of one tier, with the block before each (None at a prompt's start), as columns of equal length."""

    tier: Tier
    sequence_hashes: list[U64]
    parents: list[U64 | None]


class KvSnapshot(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The whole cache of one rank after `last_event_id` (None: it has published nothing yet)."""

    version: Literal[2]
    worker_id: U64
    tiers: list[TierSnapshot]
    last_event_id: U64 | None = None
    dp_rank: Count = 0


class TierReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one slower tier of a worker holds, and what it has done since the worker started."""

    tier: Tier
    used: bool = True
    """False while restoring is slower than computing."""
    bytes: Count = 0
    limit_bytes: Count = 0
    hits: Count = 0
    misses: Count = 0
    restored_tokens: Count = 0
    saved_seconds: Annotated[float, Meta(ge=0)] = 0.0
    """What computing the restored tokens would have taken."""


class ActiveLoad(Struct, frozen=True, kw_only=True, omit_defaults=True):
    worker_id: U64
    dp_rank: Count = 0
    active_decode_blocks: Count | None = None
    active_prefill_tokens: Count | None = None
    kv_used_blocks: Count | None = None
    kv_total_blocks: Count | None = None
    host_weight: Share | None = None
    """What a block in host memory is worth to this worker, as a share of one on the device; None: not measured."""
    disk_weight: Share | None = None
    draft_tokens: Count = 0
    """Guessed ahead since the worker started."""
    accepted_tokens: Count = 0
    """Those of them that the model would have chosen too."""
    tiers: list[TierReport] = []

    @property
    def acceptance(self) -> float | None:
        """The share of guessed tokens that were right."""
        return min(1.0, self.accepted_tokens / self.draft_tokens) if self.draft_tokens else None

    @property
    def used_blocks(self) -> int:
        return max(self.kv_used_blocks or 0, self.active_decode_blocks or 0)


class ReservationAdded(Struct, frozen=True, kw_only=True, tag="add", omit_defaults=True):
    """A router has placed a request on this worker."""

    router_id: U64
    request_id: str
    worker_id: U64
    dp_rank: Count = 0
    prompt_tokens: Count
    prefill_tokens: Count
    sequence_hashes: list[U64] = []
    extra: bool = False
    """A prefix copy, or a further choice of the same client request."""
    learn: bool = True
    """Whether, without KV events, its prompt counts as cached there from now on."""


class ReservationPrefillDone(Struct, frozen=True, kw_only=True, tag="prefill_done"):
    router_id: U64
    request_id: str


class ReservationFreed(Struct, frozen=True, kw_only=True, tag="free"):
    router_id: U64
    request_id: str


class ReservationBatch(Struct, frozen=True, omit_defaults=True):
    """`router_id` is the sender, which is alive; `running` are its reservations that have not ended."""

    events: list[ReservationAdded | ReservationPrefillDone | ReservationFreed]
    router_id: U64 | None = None
    running: list[str] | None = None


def subject(component: ComponentName, topic: str) -> str:
    return f"namespace.{component[0]}.component.{component[1]}.{topic}"
