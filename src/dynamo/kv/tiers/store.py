"""Memory and a folder as the tiers of one worker: fetch from them and store in them.

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

from dynamo.kv.messages import KvChange, Tier
from dynamo.kv.prompt_cost import Pace
from dynamo.kv.tiers.chain import TierChain
from dynamo.kv.tiers.folder import FolderTier
from dynamo.kv.tiers.memory import MemoryTier
from dynamo.kv.tiers.segment import KvSegment

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


class TierStore(TierChain):
    def __init__(
        self,
        segment_tokens: int,
        prefill: Pace,
        *,
        memory: MemoryTier | None = None,
        folder: FolderTier | None = None,
        wake: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`wake` may be called by any thread."""
        super().__init__(prefill, clock, memory=memory, disk=folder)
        self.segment_tokens = segment_tokens
        self.folder = folder
        self.secret = folder.secret if folder is not None else None
        """What names the blocks that a restart is to find."""
        self.wake = wake
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
        pace = self.prefill.seconds(self.segment_tokens)
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
        if self.memory is not None and self._readable(Tier.Host) and (found := self.memory.get(key)) is not None:
            return found, Tier.Host, 0.0
        return None

    def wanted(self, key: int) -> bool:
        """Whether a segment is to be stored: not held yet, in a tier that is worth it."""
        return self._wants(Tier.Host, key) or self._writes_wanted(key)

    def store(self, segment: KvSegment, seconds: float) -> None:
        """Store a segment that took `seconds` to copy from the device."""
        if self.memory is not None and self.memory.put(segment):
            self.costs[Tier.Host].stored(self.segment_tokens, segment.size, seconds)
        if self._writes_wanted(segment.key) and self._unwritten_bytes + segment.size <= _UNWRITTEN_BYTES:
            self._unwritten[segment.key] = segment
            self._unwritten_bytes += segment.size
            self._writes.put(segment)

    def take_changes(self) -> list[tuple[Tier, KvChange]]:
        self._collect()
        return super().take_changes()

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

    def _readable(self, tier: Tier) -> bool:
        return (tier is not Tier.Disk or self._hanging is None) and super()._readable(tier)

    def _writes_wanted(self, key: int) -> bool:
        return (
            key not in self._unwritten
            and self._clock() >= self._pause_until
            and self._hanging is None
            and self._wants(Tier.Disk, key)
        )

    def _place(self, tier: Tier) -> str:
        return str(self.folder.folder) if tier is Tier.Disk and self.folder is not None else super()._place(tier)

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
