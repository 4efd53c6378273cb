from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dynamo.kv.messages import KvChange, Removed, Stored, Tier
from dynamo.kv.prompt_cost import Pace
from dynamo.kv.tiers import FolderTier, KvSegment, MemoryTier, TierStore
from support.waiting import until_sync

SEGMENTS = [KvSegment((n,), n - 1 or None, b"x" * 1000) for n in range(1, 5)]
KEYS = [segment.key for segment in SEGMENTS]
TOKENS = 256


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class GatedFolder(FolderTier):
    """Reads when it is let."""

    gate: threading.Event | None = None

    def read(self, key: int) -> KvSegment | None:
        if self.gate is not None:
            self.gate.wait()
        return super().read(key)


class FullFolder(FolderTier):
    def put(self, segment: KvSegment) -> bool:
        raise OSError(28, "No space left on device")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[TierStore]:
    """Three segments in memory, all on disk; computing a token takes a second."""
    prefill = Pace()
    prefill.add(TOKENS, float(TOKENS))
    memory, folder = MemoryTier(3 * SEGMENTS[0].size), GatedFolder(tmp_path, 1 << 20, 1)
    store = TierStore(TOKENS, prefill, memory=memory, folder=folder, clock=clock)
    fill(store)
    yield store
    if folder.gate is not None:
        folder.gate.set()
    store.close()


def fill(store: TierStore) -> None:
    for segment in SEGMENTS:
        store.store(segment, 0.0)
    until_sync(lambda: not store.take_changes() and not store._unwritten)


def gate(store: TierStore) -> threading.Event:
    assert isinstance(store.folder, GatedFolder)
    store.folder.gate = threading.Event()
    return store.folder.gate


def test_segments_are_found_in_the_nearest_tier_up_to_the_first_gap(store: TierStore) -> None:
    assert store.find(KEYS) == [Tier.Disk, Tier.Host, Tier.Host, Tier.Host]
    assert store.find([*KEYS[:2], 99, KEYS[2]]) == [Tier.Disk, Tier.Host]
    assert store.find([99]) == []


def test_what_lies_on_disk_only_is_read_and_then_kept_in_memory(store: TierStore) -> None:
    fetch = store.fetch(KEYS)
    assert fetch is not None
    assert fetch.keys == KEYS[:1]
    until_sync(lambda: fetch.finished)
    found = store.get(KEYS[0], fetch)
    assert found is not None
    segment, tier, seconds = found
    assert (segment, tier) == (SEGMENTS[0], Tier.Disk)
    store.restored(segment, tier, TOKENS, seconds)
    assert store.find(KEYS[:2]) == [Tier.Host, Tier.Disk]  # the second was the least recently used one
    assert store.fetch(KEYS[:1]) is None


def test_a_disk_that_hangs_is_not_asked_again_until_it_answers(store: TierStore, clock: Clock) -> None:
    opened = gate(store)
    fetch = store.fetch(KEYS)
    assert fetch is not None
    assert fetch.deadline == clock.now + len(KEYS) * TOKENS
    store.abandon(fetch)
    assert store.find(KEYS) == []
    assert store.fetch(KEYS) is None
    opened.set()
    until_sync(lambda: (store.take_changes() or True) and store.find(KEYS))


def test_a_disk_is_waited_for_no_longer_than_computing_one_more_segment_takes(store: TierStore, clock: Clock) -> None:
    assert store.memory is not None
    store.memory.clear()
    opened = gate(store)
    began = clock.now
    fetch = store.fetch(KEYS)
    assert fetch is not None
    until_sync(lambda: fetch.began_at is not None)
    clock.now += 10_000  # the next one is read after a long wait
    assert fetch.due == began + TOKENS
    opened.set()
    until_sync(lambda: fetch.finished)
    assert fetch.due == fetch.deadline == began + len(KEYS) * TOKENS


def test_a_slow_disk_turns_itself_off_says_so_and_is_tried_again_later(
    store: TierStore, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    assert store.folder is not None
    caplog.set_level(logging.WARNING, "dynamo.kv.tiers")
    for _ in range(2):
        store.restored(SEGMENTS[0], Tier.Disk, TOKENS, 2.0 * TOKENS)
    assert [record.getMessage() for record in caplog.records] == [
        f"KV blocks are not restored from {store.folder.folder} any more: that takes 2000 ms per token, "
        "computing 1000 ms; measuring it again every minute"
    ]
    assert store.memory is not None
    store.memory.clear()
    assert store.find(KEYS) == []
    assert store.fetch(KEYS) is None
    assert not store.wanted(99) or store.costs[Tier.Host].may_store(store.prefill)
    clock.now += 61
    disk = store.costs[Tier.Disk]
    before = disk.restore_seconds
    assert store.fetch(KEYS) is None  # one segment is read, which no request waits for
    until_sync(lambda: (store.take_changes() or True) and disk.restore_seconds > before)
    assert store.fetch(KEYS) is None


def test_a_full_disk_is_named_once_and_left_alone_for_a_while(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "dynamo.kv.tiers")
    store = TierStore(TOKENS, Pace(), folder=FullFolder(tmp_path, 1 << 20, 1), clock=clock)
    fill(store)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == f"cannot write KV blocks into {tmp_path}: No space left on device; trying again later"
    assert not store.wanted(KEYS[0])
    clock.now += 61
    assert store.wanted(KEYS[0])
    store.close()


def test_changes_begin_with_what_is_held(store: TierStore) -> None:
    store.announced = True
    changes = store.take_changes()
    assert {(tier, *change.sequence_hashes) for tier, change in changes if isinstance(change, Stored)} == {
        *((Tier.Host, key) for key in KEYS[1:]),
        *((Tier.Disk, key) for key in KEYS),
    }
    store.store(KvSegment((9,), 4, b"x" * 1000), 0.0)
    later: list[tuple[Tier, KvChange]] = []
    until_sync(lambda: later.__iadd__(store.take_changes()) and len(later) == 3)
    assert later == [
        (Tier.Host, Removed([KEYS[1]])),
        (Tier.Host, Stored([9], 4)),
        (Tier.Disk, Stored([9], 4)),
    ]


def test_clearing_removes_files_and_what_waits_to_be_written(store: TierStore, tmp_path: Path) -> None:
    store.clear()
    assert store.find(KEYS) == []
    until_sync(lambda: not list(tmp_path.glob("*.kv")))
