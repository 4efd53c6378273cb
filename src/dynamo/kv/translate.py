"""From one engine rank's events to the numbered events that routers apply.

What an index cannot use is left out here, with its consequences: once a block is skipped, so is all that hangs on it.
"""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from dynamo.kv.engine_events import EngineBatch, EngineCleared, EngineRemoved, EngineStored
from dynamo.kv.hashing import local_hashes, salt_seed
from dynamo.protocols.kv import Cleared, Removed, RouterEvent, Stored, Tier

_INDEXED_KINDS = frozenset({"full_attention", "mla_attention", "sink_full_attention"})


class Translated(Struct, frozen=True):
    events: list[RouterEvent]
    skipped: list[str]
    """Why blocks were left out, one line each."""
    foreign_block_size: int | None = None
    """The size of blocks of the device that were left out because the model card says another one."""


class Translator:
    """Keeps what a rank's events only say once: group kinds, salts along a chain, how often a block is stored."""

    def __init__(self, *, worker_id: int, dp_rank: int, block_size: int, first_event_id: int = 0) -> None:
        self._worker_id = worker_id
        self._dp_rank = dp_rank
        self._block_size = block_size
        self._next_id = first_event_id
        self._kinds: dict[int | None, str] = {}
        self._stores: Counter[tuple[Tier, int]] = Counter()
        self._salts: dict[int | None, str] = {}
        self._skipped: set[tuple[Tier, int]] = set()
        self._foreign_block_size: int | None = None

    def translate(self, batch: EngineBatch) -> Translated:
        events: list[RouterEvent] = []
        why: list[str] = []
        self._foreign_block_size = None
        for event in batch.events:
            match event:
                case EngineStored():
                    self._stored(event, events, why)
                case EngineRemoved():
                    self._removed(event, events, why)
                case EngineCleared():
                    self._stores.clear()
                    self._salts.clear()
                    self._skipped.clear()
                    self._emit(events, Cleared(), Tier.Device)
        return Translated(events, why, self._foreign_block_size)

    def _stored(self, event: EngineStored, events: list[RouterEvent], why: list[str]) -> None:
        if event.tier is None:
            why.append("stored in an unknown medium")
            return
        if reason := self._irrelevant(event):
            why.append(reason)
            return
        fitting, reason = self._fitting(event)
        self._skipped.update((event.tier, name) for name in event.block_hashes[fitting:])
        if reason:
            why.append(reason)
        if not fitting:
            return
        hashes = event.block_hashes[:fitting]
        # vLLM names the salt on the first block of a prompt only, and only where it is computed.
        salt = event.cache_salt or self._salts.get(event.parent_hash)
        if not salt and event.tier is not Tier.Device:
            salt = self._salts.get(hashes[0])
        if salt:
            self._salts.update(dict.fromkeys(hashes, salt))
        local = local_hashes(event.token_ids, self._block_size, salt_seed(event.lora_name, salt), eagle=event.eagle)
        self._skipped.difference_update((event.tier, name) for name in hashes)
        self._stores.update((event.tier, name) for name in hashes)
        self._emit(events, Stored(hashes, local[:fitting], event.parent_hash), event.tier)

    def _fitting(self, event: EngineStored) -> tuple[int, str | None]:
        """How many leading blocks can be indexed, and why not more."""
        names = event.block_hashes
        if not event.block_size:
            return 0, "blocks without their tokens"
        if event.block_size != self._block_size:
            if event.tier is Tier.Device:
                self._foreign_block_size = event.block_size
            return 0, f"blocks of {event.block_size} tokens where the model card says {self._block_size}"
        if event.parent_hash is not None and self._left_out(event.parent_hash):
            return 0, "the parent block was left out"
        if len(set(names)) < len(names) or event.parent_hash in names:
            return 0, "the same block twice in one event"
        full = (len(event.token_ids) - event.eagle) // self._block_size
        opaque = event.opaque
        if self._skipped and event.tier is not Tier.Device:
            # What a block depends on is told where it is computed, not where it is copied to.
            opaque |= {at for at, name in enumerate(names) if self._left_out(name)}
        if opaque and min(opaque) < min(full, len(names)):
            return min(opaque), "content depends on more than tokens"
        if full < len(names):
            return max(0, full), f"{len(event.token_ids)} tokens do not fill {len(names)} blocks"
        return len(names), None

    def _left_out(self, name: int) -> bool:
        keys = [(tier, name) for tier in Tier]
        return any(key in self._skipped for key in keys) and not any(key in self._stores for key in keys)

    def _removed(self, event: EngineRemoved, events: list[RouterEvent], why: list[str]) -> None:
        if event.tier is None:
            why.append("removed from an unknown medium")
            return
        if reason := self._irrelevant(event):
            why.append(reason)
            return
        gone = []
        for name in event.block_hashes:
            key = (event.tier, name)
            if self._stores[key] > 1:
                self._stores[key] -= 1
                continue
            del self._stores[key]
            if key in self._skipped:
                self._skipped.discard(key)
                continue
            gone.append(name)
            if name in self._salts and not any((tier, name) in self._stores for tier in Tier):
                del self._salts[name]
        if gone:
            self._emit(events, Removed(gone), event.tier)

    def _irrelevant(self, event: EngineStored | EngineRemoved) -> str | None:
        """Only attention over the whole prompt makes a prefix reusable; other caches of hybrid models do not count."""
        if not event.local:
            return "the block lies with another worker"
        if event.kind is not None:
            self._kinds[event.group] = event.kind
        kind = self._kinds.get(event.group)
        if kind is None:
            return f"group {event.group} of unknown kind" if event.group else None
        return None if kind in _INDEXED_KINDS else f"cache of kind {kind}"

    def _emit(self, events: list[RouterEvent], data: Stored | Removed | Cleared, tier: Tier) -> None:
        events.append(
            RouterEvent(worker_id=self._worker_id, dp_rank=self._dp_rank, event_id=self._next_id, data=data, tier=tier)
        )
        self._next_id += 1
