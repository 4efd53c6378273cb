"""From one rank's engine events to net changes of its cache in sequence hashes.

An engine names blocks as it likes and may have several names for one block; only this module knows those names. A block
is announced with its first name and removed with its last. What cannot be expressed in sequence hashes is left out, and
so are all blocks after it in the same prompt.
"""

from __future__ import annotations

import logging

from msgspec import Struct

from dynamo.kv.hashing import local_hashes, salt_seed, sequence_hashes
from dynamo.kv.messages import Cleared, KvChange, Removed, Stored, Tier
from dynamo.kv.publish.engine_events import EngineBatch, EngineCleared, EngineRemoved, EngineStored
from dynamo.kv.publish.feed import RankFeed

_INDEXED_KINDS = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
log = logging.getLogger(__name__)
_WARNINGS = 3
"""Rejections logged as warnings; further ones are logged at debug level."""


class Translated(Struct, frozen=True):
    changes: list[tuple[Tier, KvChange]]
    skipped: list[str]
    """Why blocks were left out, one line each."""
    block_sizes: set[int]
    """Sizes of the blocks that were stored on the device, expressible or not."""


class NamedBlocks:
    """The blocks of one tier by the engine's names for them."""

    def __init__(self) -> None:
        self.sequences: dict[int, int] = {}
        """Sequence hash by name."""
        self._repeats: dict[int, int] = {}
        """How often a name was stored beyond the first time."""
        self._names: dict[int, int] = {}
        """How many names each block has."""

    def store(self, name: int, block: int) -> tuple[bool, int | None]:
        """Whether the block is new, and the block that is gone because its last name now means this one."""
        before = self.sequences.get(name)
        if before == block:
            self._repeats[name] = self._repeats.get(name, 0) + 1
            return False, None
        gone = before if before is not None and self._forget(name, before) else None
        self.sequences[name] = block
        count = self._names[block] = self._names.get(block, 0) + 1
        return count == 1, gone

    def remove(self, name: int) -> int | None:
        """The block that is gone with this name, if any. A name stored several times takes as many removals."""
        block = self.sequences.get(name)
        if block is None:
            return None
        if repeats := self._repeats.pop(name, 0):
            if repeats > 1:
                self._repeats[name] = repeats - 1
            return None
        return block if self._forget(name, block) else None

    def _forget(self, name: int, block: int) -> bool:
        """True if it was the block's last name."""
        del self.sequences[name]
        self._repeats.pop(name, None)
        if (left := self._names[block] - 1) > 0:
            self._names[block] = left
            return False
        del self._names[block]
        return True


class Translator:
    """Keeps what a rank's events say only once: names, the kinds of cache groups, salts along a prompt."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._kinds: dict[int | None, str] = {}
        self._tiers = {tier: NamedBlocks() for tier in Tier}
        self._salts: dict[int | None, str] = {}
        self._left_out: dict[Tier, set[int]] = {tier: set() for tier in Tier}
        """Names of blocks that cannot be expressed."""

    def translate(self, batch: EngineBatch) -> Translated:
        changes: list[tuple[Tier, KvChange]] = []
        skipped: list[str] = []
        sizes: set[int] = set()
        for event in batch.events:
            if isinstance(event, EngineCleared):
                self._clear()
                changes.append((Tier.Device, Cleared()))
                continue
            reason = self._irrelevant(event)
            if reason is None:
                assert event.tier is not None
                if isinstance(event, EngineStored):
                    if event.tier is Tier.Device and event.block_size:
                        sizes.add(event.block_size)
                    reason = self._store(event, event.tier, changes)
                else:
                    self._remove(event, event.tier, changes)
            if reason:
                skipped.append(reason)
        return Translated(changes, skipped, sizes)

    def _clear(self) -> None:
        self._tiers = {tier: NamedBlocks() for tier in Tier}
        self._left_out = {tier: set() for tier in Tier}
        self._salts.clear()

    def _store(self, event: EngineStored, tier: Tier, changes: list[tuple[Tier, KvChange]]) -> str | None:
        """Why some or all of the blocks were left out, if they were."""
        if len({*event.block_hashes, event.parent_hash}) <= len(event.block_hashes):
            return "the same block twice in one event"
        fitting, reason = self._count_expressible(event)
        names = event.block_hashes[:fitting]
        held, left_out = self._tiers[tier], self._left_out[tier]
        left_out.update(name for name in event.block_hashes[fitting:] if name not in held.sequences)
        if not names:
            return reason
        parent = self._find_block(event.parent_hash)
        if parent is None and event.parent_hash is not None:
            return f"parent block {event.parent_hash} is unknown"
        left_out.difference_update(names)
        # vLLM names the salt on the first block of a prompt only, and only where it is computed.
        salt = event.cache_salt or self._salts.get(event.parent_hash)
        if not salt and tier is not Tier.Device:
            salt = self._salts.get(names[0])
        if salt:
            self._salts.update(dict.fromkeys(names, salt))
        local = local_hashes(event.token_ids, self._block_size, salt_seed(event.lora_name, salt), eagle=event.eagle)
        hashes = sequence_hashes(local[:fitting], parent)
        new, gone = [], []
        for name, block in zip(names, hashes, strict=True):
            is_new, replaced = held.store(name, block)
            new.append(is_new)
            if replaced is not None:
                gone.append(replaced)
        if gone:
            changes.append((tier, Removed(gone)))
        changes += [(tier, stored) for stored in _runs(hashes, new, parent)]
        return reason

    def _count_expressible(self, event: EngineStored) -> tuple[int, str | None]:
        """How many leading blocks can be expressed, and why not more."""
        names = event.block_hashes
        if not event.block_size:
            return 0, "blocks without their tokens"
        if event.block_size != self._block_size:
            return 0, f"blocks of {event.block_size} tokens where the model card says {self._block_size}"
        if event.parent_hash is not None and self._is_left_out(event.parent_hash):
            return 0, "the parent block was left out"
        full = (len(event.token_ids) - event.eagle) // self._block_size
        opaque = event.opaque
        if event.tier is not Tier.Device and any(self._left_out.values()):
            # Events say what a block depends on where it is computed, not where it is copied to.
            opaque |= {at for at, name in enumerate(names) if self._is_left_out(name)}
        if opaque and min(opaque) < min(full, len(names)):
            return min(opaque), "content depends on more than tokens"
        if full < len(names):
            return max(0, full), f"{len(event.token_ids)} tokens do not fill {len(names)} blocks"
        return len(names), None

    def _remove(self, event: EngineRemoved, tier: Tier, changes: list[tuple[Tier, KvChange]]) -> None:
        held, left_out = self._tiers[tier], self._left_out[tier]
        gone = []
        for name in event.block_hashes:
            if (block := held.remove(name)) is not None:
                gone.append(block)
            left_out.discard(name)
            if name in self._salts and self._find_block(name) is None:
                del self._salts[name]
        if gone:
            changes.append((tier, Removed(gone)))

    def _irrelevant(self, event: EngineStored | EngineRemoved) -> str | None:
        """Only attention over the whole prompt makes a prefix reusable; other caches of hybrid models do not count."""
        if event.tier is None:
            return f"{'stored in' if isinstance(event, EngineStored) else 'removed from'} an unknown medium"
        if not event.local:
            return "the block lies with another worker"
        if event.kind is not None:
            self._kinds[event.group] = event.kind
        kind = self._kinds.get(event.group)
        if kind is None:
            return f"group {event.group} of unknown kind" if event.group else None
        return None if kind in _INDEXED_KINDS else f"cache of kind {kind}"

    def _find_block(self, name: int | None) -> int | None:
        """The block of this name, in the fastest tier that has it."""
        if name is None:
            return None
        return next((held.sequences[name] for held in self._tiers.values() if name in held.sequences), None)

    def _is_left_out(self, name: int) -> bool:
        return any(name in names for names in self._left_out.values()) and self._find_block(name) is None


def _runs(hashes: list[int], new: list[bool], parent: int | None) -> list[Stored]:
    """Yield one event per stretch of new blocks."""
    if all(new):
        return [Stored(hashes, parent)]
    events: list[Stored] = []
    begin = 0
    for at in range(len(hashes) + 1):
        if at == len(hashes) or not new[at]:
            if at > begin:
                events.append(Stored(hashes[begin:at], hashes[begin - 1] if begin else parent))
            begin = at + 1
    return events


class EngineRank:
    """Translates and publishes the events of one rank, and logs those that cannot be expressed."""

    def __init__(self, rank: RankFeed, block_size: int) -> None:
        self._rank = rank
        self._block_size = block_size
        self._rejections = 0
        self.stopped = False
        """Nothing more is published: the engine's block size is not the model card's."""
        self._size_confirmed = False
        """The engine has stored blocks of the model card's size, so that other sizes are exceptions."""
        self._translator = Translator(block_size)

    def take(self, batch: EngineBatch) -> None:
        if self.stopped:
            return
        translated = self._translator.translate(batch)
        self._size_confirmed = self._size_confirmed or self._block_size in translated.block_sizes
        if translated.block_sizes and not self._size_confirmed:
            self._stop(min(translated.block_sizes))
            return
        for reason in translated.skipped:
            self.rejected(reason)
        for tier, change in translated.changes:
            self._rank.publish(change, tier)

    def forget(self) -> None:
        """Publish that the rank holds nothing: what the engine holds is unknown from now on."""
        self._rank.publish(Cleared())
        self._translator = Translator(self._block_size)

    def rejected(self, reason: str) -> None:
        self._rejections += 1
        log.log(
            logging.WARNING if self._rejections <= _WARNINGS else logging.DEBUG,
            "blocks of worker %s rank %d are left out: %s", *self._rank.worker.named, reason,
        )  # fmt: skip

    def _stop(self, block_size: int) -> None:
        self.stopped = True
        log.warning(
            "worker %s rank %d stops publishing KV events, and is routed by load only: its engine has blocks of %d "
            "tokens, the model card says %d. Give the engine and the model card the same block size.",
            *self._rank.worker.named, block_size, self._block_size,
        )  # fmt: skip
        self.forget()
