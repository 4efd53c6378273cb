"""Both tiers of one worker: find, fetch, store; what they hold as KV events, and what each is worth.

One thread, the engine's, calls everything here. Two threads of the store read and write files, and `wake` the engine's
when something is done. A slow or hanging disk delays no request for longer than computing would have taken.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue

from dynamo.protocols.kv import KvChange, Tier, TierReport
from dynamo.tiers.costs import PrefillCost, TierCosts
from dynamo.tiers.folder import FolderTier
from dynamo.tiers.memory import MemoryTier
from dynamo.tiers.segment import KvSegment

log = logging.getLogger(__name__)

_UNWRITTEN_BYTES = 256 << 20
"""Segments that wait to be written, at most; further ones are not written."""
_PAUSE_SECONDS = 60.0
"""After a failure nothing is written for this time."""
_CLOSE_SECONDS = 5.0


class TierFetch:
    """Segments that are being read for one request."""

    def __init__(self, keys: Sequence[int], deadline: float, pace: float) -> None:
        self.keys = keys
        self.deadline = deadline
        """When computing the tokens would have been done: waiting longer is of no use."""
        self.pace = pace
        """Seconds in which a segment would be computed."""
        self.began_at: float | None = None
        """When the first segment began to be read; before that, other fetches are."""
        self.read: dict[int, tuple[KvSegment, float]] = {}
        """With the seconds that reading took."""
        self.finished = False
        self.abandoned = False
        self.measures = False
        """It is read although nobody waits for it."""

    @property
    def due(self) -> float:
        """Until when to wait for the next segment: a disk that falls behind computing costs one segment's time."""
        if self.began_at is None:
            return self.deadline
        return min(self.deadline, self.began_at + (len(self.read) + 1) * self.pace)


class TierStore:
    def __init__(
        self,
        segment_tokens: int,
        prefill: PrefillCost,
        *,
        memory: MemoryTier | None = None,
        folder: FolderTier | None = None,
        wake: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`wake` may be called by any thread."""
        self.segment_tokens = segment_tokens
        self.prefill = prefill
        self.memory, self.folder = memory, folder
        self.costs = {
            tier: TierCosts() for tier, there in ((Tier.Host, memory), (Tier.Disk, folder)) if there is not None
        }
        self._in_use = dict.fromkeys(self.costs, True)
        """As the log has it."""
        self.wake = wake
        self._changes: deque[tuple[Tier, KvChange]] = deque()
        self.announced = False
        """Set it, then `take_changes` begins with all that is held; before, it has none."""
        self._listening = False
        self._clock = clock
        self._hanging: TierFetch | None = None
        """A fetch that nobody waits for any more and that has not returned: the disk is not asked for more."""
        self._unwritten: dict[int, KvSegment] = {}
        self._unwritten_bytes = 0
        self._pause_until = 0.0
        self._fetches: SimpleQueue[TierFetch | None] = SimpleQueue()
        self._writes: SimpleQueue[KvSegment | Callable[[], None] | None] = SimpleQueue()
        self._done: deque[tuple[KvSegment, OSError | None]] = deque()
        self._returned: deque[TierFetch] = deque()
        targets = () if folder is None else (self._read, self._write)
        self._threads = [threading.Thread(target=target, name="kv-tiers", daemon=True) for target in targets]
        for thread in self._threads:
            thread.start()

    def find(self, keys: Sequence[int]) -> list[Tier]:
        """In which tier each of the first keys is, as far as they are held where restoring is worthwhile."""
        tiers = self._used_tiers()
        found: list[Tier] = []
        for key in keys:
            tier = next((tier for tier, held in tiers if key in held), None)
            if tier is None:
                break
            found.append(tier)
        for tier, costs in self.costs.items():
            costs.hits += found.count(tier)
            costs.misses += len(keys) - len(found)
        return found

    def fetch(self, keys: Sequence[int]) -> TierFetch | None:
        """Begin to read what of the found `keys` lies in the folder only; None if that is nothing.

        While the disk is slower than computing, one segment is read now and then, to measure it; nobody waits for that.
        """
        if self.folder is None or self._hanging is not None:
            return None
        now, disk = self._clock(), self.costs[Tier.Disk]
        wanted = [key for key in keys if (self.memory is None or key not in self.memory) and key in self.folder]
        if not wanted:
            return None
        if not disk.worthwhile(self.prefill):
            if disk.take_trial(self.prefill, now):
                self._hanging = trial = TierFetch(wanted[:1], now, 0.0)
                trial.measures = trial.abandoned = True
                self._fetches.put(trial)
            return None
        pace = self.segment_tokens * (self.prefill.seconds_per_token or 0.0)
        fetch = TierFetch(wanted, now + len(keys) * pace, pace)
        self._fetches.put(fetch)
        return fetch

    def abandon(self, fetch: TierFetch) -> None:
        """Do not wait for it any longer; what it reads is measured all the same."""
        fetch.abandoned = True
        if not fetch.finished:
            self._hanging = fetch

    def get(self, key: int, fetch: TierFetch | None = None) -> tuple[KvSegment, Tier, float] | None:
        """A segment that is in memory or was fetched, where it came from and the seconds that took so far."""
        if fetch is not None and key in fetch.read:
            segment, seconds = fetch.read[key]
            return segment, Tier.Disk, seconds
        if self.memory is not None and self._reads_memory() and (found := self.memory.get(key)) is not None:
            return found, Tier.Host, 0.0
        return None

    def restored(self, segment: KvSegment, tier: Tier, tokens: int, seconds: float) -> None:
        """It was used; `seconds` counts everything from the tier to the device."""
        self.costs[tier].restored(tokens, segment.size, seconds, self.prefill, self._clock())
        self._log_use(tier)
        if tier is Tier.Disk and self.memory is not None:
            self.memory.put(segment)

    def measured(self, tier: Tier, tokens: int, seconds: float) -> None:
        """Restoring `tokens` took, or would have taken, `seconds`."""
        self.costs[tier].measured(tokens, seconds, self.prefill, self._clock())
        self._log_use(tier)

    def failed(self, tier: Tier) -> None:
        self.costs[tier].failures += 1

    def wanted(self, key: int) -> bool:
        """Whether a segment is to be stored: not held yet, in a tier that is worth it."""
        if self.memory is not None and self.costs[Tier.Host].may_store(self.prefill) and key not in self.memory:
            return True
        return self._writes_wanted(key)

    def store(self, segment: KvSegment, seconds: float) -> None:
        """Store a segment that took `seconds` to copy from the device."""
        if self.memory is not None and self.memory.put(segment):
            self.costs[Tier.Host].stored(self.segment_tokens, segment.size, seconds)
        if self._writes_wanted(segment.key) and self._unwritten_bytes + segment.size <= _UNWRITTEN_BYTES:
            self._unwritten[segment.key] = segment
            self._unwritten_bytes += segment.size
            self._writes.put(segment)

    def take_changes(self) -> list[tuple[Tier, KvChange]]:
        """What happened to the blocks of both tiers since the last call."""
        self._collect()
        if self.announced and not self._listening:
            self._listening = True
            if self.memory is not None:
                self.memory.listen(lambda change: self._changes.append((Tier.Host, change)))
            if self.folder is not None:
                self.folder.listen(lambda change: self._changes.append((Tier.Disk, change)))
        changes = []
        while self._changes:
            changes.append(self._changes.popleft())
        return changes

    def weights(self) -> tuple[float | None, float | None]:
        """What a block in memory and on disk is worth; in steps, as each change is sent to the routers."""
        found = (self.costs.get(tier) for tier in (Tier.Host, Tier.Disk))
        host, disk = (costs.weight(self.prefill) if costs else None for costs in found)
        return (None if host is None else round(host, 1)), (None if disk is None else round(disk, 1))

    def reports(self) -> list[TierReport]:
        """What each tier holds and has done, for people who look at the fleet."""
        held = {Tier.Host: self.memory, Tier.Disk: self.folder}
        return [
            TierReport(
                tier=tier,
                used=costs.worthwhile(self.prefill),
                bytes=where.used,
                limit_bytes=where.limit,
                hits=costs.hits,
                misses=costs.misses,
                restored_tokens=costs.restored_tokens,
                saved_seconds=round(costs.saved_seconds, 3),
            )
            for tier, costs in self.costs.items()
            if (where := held[tier]) is not None
        ]

    def clear(self) -> None:
        """Forget everything, without a change for each block; the files are removed by and by."""
        if self.memory is not None:
            self.memory.clear()
        if self.folder is not None:
            self._unwritten.clear()
            self._writes.put(partial(self.folder.remove_files, self.folder.forget_all()))
        self._changes.clear()

    def close(self) -> None:
        """Finish what is being written, unless the disk hangs."""
        self._fetches.put(None)
        self._writes.put(None)
        for thread in self._threads:
            thread.join(_CLOSE_SECONDS)
        if self.folder is not None:
            self.folder.close()

    def _used_tiers(self) -> list[tuple[Tier, MemoryTier | FolderTier]]:
        tiers: list[tuple[Tier, MemoryTier | FolderTier]] = []
        if self.memory is not None and self._reads_memory():
            tiers.append((Tier.Host, self.memory))
        if self.folder is not None and self._hanging is None:
            disk = self.costs[Tier.Disk]
            if disk.worthwhile(self.prefill) or self._clock() >= disk.retry_at:
                tiers.append((Tier.Disk, self.folder))
        return tiers

    def _reads_memory(self) -> bool:
        host = self.costs[Tier.Host]
        return host.worthwhile(self.prefill) or self._clock() >= host.retry_at

    def _writes_wanted(self, key: int) -> bool:
        return (
            self.folder is not None
            and key not in self.folder
            and key not in self._unwritten
            and self._clock() >= self._pause_until
            and self._hanging is None
            and self.costs[Tier.Disk].may_store(self.prefill)
        )

    def _collect(self) -> None:
        """What the two threads have done."""
        while self._done:
            segment, error = self._done.popleft()
            self._unwritten.pop(segment.key, None)
            self._unwritten_bytes -= segment.size
            disk = self.costs[Tier.Disk]
            if error is None:
                disk.stored_tokens += self.segment_tokens
                disk.stored_bytes += segment.size
                continue
            disk.failures += 1
            if self._clock() >= self._pause_until:
                assert self.folder is not None
                reason = error.strerror or error
                log.warning("cannot write KV blocks into %s: %s; trying again later", self.folder.folder, reason)
            self._pause_until = self._clock() + _PAUSE_SECONDS
        while self._returned:
            fetch = self._returned.popleft()
            if fetch is self._hanging:
                self._hanging = None
            if fetch.abandoned:
                for _, seconds in fetch.read.values():
                    self.measured(Tier.Disk, self.segment_tokens, seconds)

    def _log_use(self, tier: Tier) -> None:
        """One line when a tier turns itself off, and one when it is used again."""
        costs = self.costs[tier]
        used = costs.worthwhile(self.prefill)
        if used == self._in_use[tier]:
            return
        self._in_use[tier] = used
        where = self.folder.folder if tier is Tier.Disk and self.folder is not None else "memory"
        restoring, computing = (1e3 * (each.seconds_per_token or 0.0) for each in (costs, self.prefill))
        if used:
            log.info("KV blocks are restored from %s again: %.4g ms per token, computing takes %.4g ms", where,
                     restoring, computing)  # fmt: skip
        else:
            log.warning("KV blocks are not restored from %s any more: that takes %.4g ms per token, computing %.4g ms; "
                        "measuring it again every minute", where, restoring, computing)  # fmt: skip

    def _read(self) -> None:
        assert self.folder is not None
        while (fetch := self._fetches.get()) is not None:
            fetch.began_at = self._clock()
            self.wake()
            for key in fetch.keys:
                if fetch.abandoned and not fetch.measures:
                    break
                begun = time.perf_counter()
                try:
                    segment = self.folder.read(key)
                except OSError as error:
                    log.warning("cannot read KV blocks from %s: %s", self.folder.folder, error.strerror or error)
                    segment = None
                if segment is None:
                    break
                fetch.read[key] = (segment, time.perf_counter() - begun)
            fetch.finished = True
            self._returned.append(fetch)
            self.wake()

    def _write(self) -> None:
        assert self.folder is not None
        while (item := self._writes.get()) is not None:
            if not isinstance(item, KvSegment):
                item()
                self.wake()
                continue
            failure = None
            try:
                if item.key in self._unwritten:
                    self.folder.put(item)
            except OSError as error:
                failure = error
            self._done.append((item, failure))
            self.wake()
