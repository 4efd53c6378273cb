"""Both tiers against a naive model: a list of segments, oldest first, and the sum of their sizes."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from dynamo.kv.messages import KvChange, Stored
from dynamo.kv.tiers import FolderTier, KvSegment, MemoryTier

BLOCKS = 2
SEGMENTS = [KvSegment((2 * n + 1, 2 * n + 2), 2 * n or None, bytes(range(n * 7))) for n in range(8)]
SIZES = sum(segment.size for segment in SEGMENTS)


class Followed:
    """The blocks held, according to the changes: none is stored twice or removed while not held."""

    def __init__(self) -> None:
        self.blocks: set[int] = set()

    def __call__(self, change: KvChange) -> None:
        hashes = set(change.sequence_hashes)  # type: ignore[union-attr]
        if isinstance(change, Stored):
            assert not hashes & self.blocks
            self.blocks |= hashes
        else:
            assert hashes <= self.blocks
            self.blocks -= hashes


class TiersMachine(RuleBasedStateMachine):
    kept = Bundle("kept")

    @initialize(limit=st.integers(0, SIZES))
    def begin(self, limit: int) -> None:
        self.limit = limit
        self.place = tempfile.TemporaryDirectory()
        self.naive: list[KvSegment] = []
        self.in_memory, self.in_folder = Followed(), Followed()
        self.memory = MemoryTier(limit, self.in_memory)
        self.open()

    def open(self) -> None:
        self.folder = FolderTier(Path(self.place.name), self.limit, BLOCKS, self.in_folder)

    def teardown(self) -> None:
        self.folder.close()
        self.place.cleanup()

    @rule(segment=st.sampled_from(SEGMENTS))
    def put(self, segment: KvSegment) -> None:
        fits = segment.size <= self.limit and segment not in self.naive
        if segment in self.naive:
            self.naive.remove(segment)
            self.naive.append(segment)
        elif fits:
            while sum(each.size for each in self.naive) + segment.size > self.limit:
                self.naive.pop(0)
            self.naive.append(segment)
        assert self.memory.put(segment) is fits
        assert self.folder.put(segment) is fits

    @rule(segment=st.sampled_from(SEGMENTS))
    def get(self, segment: KvSegment) -> None:
        held = segment if segment in self.naive else None
        if held:
            self.naive.remove(segment)
            self.naive.append(segment)
        assert self.memory.get(segment.key) == held
        assert self.folder.read(segment.key) == held

    @rule()
    def clear(self) -> None:
        self.naive.clear()
        self.memory.clear()
        self.folder.remove_files(self.folder.forget_all())
        self.in_memory.blocks.clear()
        self.in_folder.blocks.clear()

    @invariant()
    def holds_what_the_naive_model_holds(self) -> None:
        keys = {segment.key for segment in self.naive}
        used = sum(segment.size for segment in self.naive)
        for tier in (self.memory, self.folder):
            assert {segment.key for segment in SEGMENTS if segment.key in tier} == keys
            assert tier.used == used <= self.limit
        blocks = {block for segment in self.naive for block in segment.hashes}
        assert self.in_memory.blocks == self.in_folder.blocks == blocks
        files = {path.stat().st_size for path in Path(self.place.name).glob("*.kv")}
        assert files == {segment.size for segment in self.naive}


TestTiers = TiersMachine.TestCase
TestTiers.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
