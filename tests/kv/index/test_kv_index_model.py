"""The index against a naive model, under any events in any order; `make test-deep` tries a hundred thousand of them."""

from __future__ import annotations

import random
from functools import cache

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dynamo.kv.hashing import local_hashes, salt_seed, sequence_hashes
from dynamo.kv.index.index import Index
from dynamo.kv.messages import (
    KV_WIRE_VERSION,
    Cleared,
    KvChange,
    KvSnapshot,
    Removed,
    RouterEvent,
    Stored,
    Tier,
    TierSnapshot,
    WorkerRank,
)
from dynamo.protocols.errors import InvalidArgument
from support.kv_naive import NaiveIndex

Prompt = tuple[tuple[int, ...], int]
"""Blocks of one token each, and which adapter or tenant it belongs to."""

SALTS = [salt_seed(), salt_seed("lora"), salt_seed(None, "tenant")]


@cache
def local_of(prompt: Prompt) -> list[int]:
    return local_hashes(prompt[0], 1, SALTS[prompt[1]])


@cache
def chain_of(prompt: Prompt) -> list[int]:
    return sequence_hashes(local_of(prompt))


def snapshot_of(worker: WorkerRank, *tiers: TierSnapshot) -> KvSnapshot:
    return KvSnapshot(version=KV_WIRE_VERSION, worker_id=worker.worker_id, dp_rank=worker.dp_rank, tiers=list(tiers))


WORKERS = st.sampled_from([WorkerRank(1), WorkerRank(1, 1), WorkerRank(2), WorkerRank(3)])
TIERS = st.sampled_from([*[Tier.Device] * 7, Tier.Host, Tier.Disk, Tier.External])
TOKENS = st.sampled_from([(1,), (1, 1), (1, 2), (1, 1, 1), (1, 1, 2), (1, 2, 1), (1, 1, 1, 1), (2, 2, 1, 2, 1, 1, 2)])
PROMPTS = st.tuples(TOKENS, st.sampled_from([0, 0, 0, 0, 0, 1, 2]))
PLACES = st.integers(0, 7)
SOME = st.lists(st.integers(0, 31), min_size=1, max_size=2)


class IndexAgainstNaiveModel(RuleBasedStateMachine):
    """Few tokens, so that gaps, forks, repeated and unknown blocks happen all the time."""

    @initialize()
    def begin(self) -> None:
        self.index = Index()
        self.model = NaiveIndex()
        self.asked: list[Prompt] = [((1,) * 6, 0), ((1, 2, 1), 0), ((2, 2, 1, 2, 1, 1, 2), 0), ((1, 1), 1)]

    @rule(worker=WORKERS, tier=TIERS, prompt=PROMPTS, first=PLACES, count=st.integers(1, 8))
    def store(self, worker: WorkerRank, tier: Tier, prompt: Prompt, first: int, count: int) -> None:
        """Part of a prompt from some block on, under the one before it: held or not."""
        self.asked[-1] = prompt
        chain = chain_of(prompt)
        first = max(0, first - 4) % len(chain)
        self._apply(worker, Stored(chain[first : first + count], chain[first - 1] if first else None), tier)

    @rule(worker=WORKERS, prompt=PROMPTS)
    def store_all(self, worker: WorkerRank, prompt: Prompt) -> None:
        self._apply(worker, Stored(chain_of(prompt)[:]))

    @rule(worker=WORKERS, tier=TIERS, parent=PLACES, prompt=PROMPTS)
    def store_under_a_block_it_holds(self, worker: WorkerRank, tier: Tier, parent: int, prompt: Prompt) -> None:
        if held := self._held(worker, tier):
            above = held[parent % len(held)]
            self._apply(worker, Stored(sequence_hashes(local_of(prompt), above), above), tier)

    @rule(worker=WORKERS, tier=TIERS, places=SOME)
    def evict_what_it_holds(self, worker: WorkerRank, tier: Tier, places: list[int]) -> None:
        if held := self._held(worker, tier):
            self._apply(worker, Removed([held[place % len(held)] for place in places]), tier)

    @rule(worker=WORKERS, tier=TIERS, prompt=PROMPTS, first=PLACES)
    def evict_from_the_end(self, worker: WorkerRank, tier: Tier, prompt: Prompt, first: int) -> None:
        chain = chain_of(prompt)
        self._apply(worker, Removed(chain[first % len(chain) :][::-1]), tier)

    @rule(worker=WORKERS, tier=TIERS, prompt=PROMPTS, places=st.lists(PLACES, max_size=5))
    def evict_any_blocks(self, worker: WorkerRank, tier: Tier, prompt: Prompt, places: list[int]) -> None:
        """Held or not, some of them twice."""
        chain = chain_of(prompt)
        self._apply(worker, Removed([chain[place % len(chain)] for place in places]), tier)

    @rule(worker=WORKERS, what=st.sampled_from(["clear", "leave", "itself", "restart", "malformed", "empty"]))
    def upheaval(self, worker: WorkerRank, what: str) -> None:
        match what:
            case "clear":
                self._apply(worker, Cleared())
            case "leave":
                self.index.remove_worker(worker)
                self.model.held.pop(worker, None)
            case "itself":
                snapshot = snapshot_of(worker, *self.index.snapshot(worker))
                self.index.replace(snapshot)
                self.model.replace(snapshot)
            case "restart":
                # A second router that saw nothing but snapshots, and those as bytes, knows the same.
                fresh = Index()
                for known in self.index.workers:
                    sent = msgspec.msgpack.encode(snapshot_of(known, *self.index.snapshot(known)))
                    fresh.replace(msgspec.msgpack.decode(sent, type=KvSnapshot))
                self.index = fresh
            case "malformed":
                self._apply(worker, Stored([1, 2, 1]))
                for chain, parents in (([5], []), ([5], [1, 2]), ([5, 6], [1, 6])):
                    part = TierSnapshot(tier=Tier.Device, sequence_hashes=chain, parents=[*parents])
                    with pytest.raises(InvalidArgument):
                        self.index.replace(snapshot_of(worker, part))
            case "empty":
                self._apply(worker, Stored([], 5))
                self._apply(worker, Removed([]))

    @rule(
        worker=WORKERS,
        parts=st.lists(st.tuples(TIERS, PROMPTS, st.sets(PLACES)), max_size=3),
        order=st.randoms(use_true_random=False),
    )
    def replace(self, worker: WorkerRank, parts: list[tuple[Tier, Prompt, set[int]]], order: random.Random) -> None:
        """A snapshot with gaps, in any order, with one tier in several parts."""
        tiers = []
        for tier, prompt, places in parts:
            chain = chain_of(prompt)
            parents = [None, *chain]
            rows = [(chain[at], parents[at]) for at in places if at < len(chain)]
            order.shuffle(rows)
            blocks, above = [row[0] for row in rows], [row[1] for row in rows]
            tiers.append(TierSnapshot(tier=tier, sequence_hashes=blocks, parents=above))
        snapshot = snapshot_of(worker, *tiers)
        self.index.replace(snapshot)
        self.model.replace(snapshot)

    @invariant()
    def the_same_prompts_match_as_deep(self) -> None:
        for prompt in self.asked:
            assert self.index.match(chain_of(prompt)).by_worker() == self.model.match(chain_of(prompt))

    @invariant()
    def the_same_workers_hold_the_same_blocks(self) -> None:
        assert set(self.index.workers) == set(self.model.held)
        for worker, tiers in self.model.held.items():
            parts = {part.tier: part for part in self.index.snapshot(worker)}
            assert len(parts) == len(self.index.snapshot(worker))
            for tier, blocks in tiers.items():
                assert self.index.blocks(worker, tier) == len(blocks)
                if not blocks:
                    assert tier not in parts
                    continue
                part = parts[tier]
                assert len(part.sequence_hashes) == len(blocks)
                assert set(part.sequence_hashes) == blocks
                assert part.parents == [self.model.parents[block] for block in part.sequence_hashes]
                places: dict[int | None, int] = {block: at for at, block in enumerate(part.sequence_hashes)}
                assert all(places.get(parent, -1) < at for at, parent in enumerate(part.parents))
            for block in self.model.parents:
                assert self.index.holds(worker, block) == (block in tiers[Tier.Device])

    @invariant()
    def nothing_is_kept_that_nobody_holds(self) -> None:
        held = {block for tiers in self.model.held.values() for blocks in tiers.values() for block in blocks}
        assert len(self.index) == len(held)
        for tier, runs in self.index._tiers.items():
            assert runs.of.keys() == {block for tiers in self.model.held.values() for block in tiers[tier]}
        assert len(self.index._slots.workers) <= 4

    @invariant()
    def runs_are_whole_chains_of_blocks_that_somebody_holds(self) -> None:
        for tier, runs in self.index._tiers.items():
            assert {id(run) for run in runs.of.values()} == {id(run) for run in runs._all}
            assert len(runs.of) == sum(len(run.blocks) for run in runs._all)
            for run in runs._all:
                everything = (1 << len(run.blocks)) - 1
                for parent, block in zip([run.parent, *run.blocks], run.blocks, strict=False):
                    assert self.model.parents[block] == parent
                    assert runs.of[block] is run
                assert all(0 < end < len(run.blocks) and not run.full >> slot & 1 for slot, end in run.prefix.items())
                for slot, positions in run.gaps.items():
                    assert positions & (positions + 1)
                    assert positions < everything
                    assert not run.full >> slot & 1
                    assert slot not in run.prefix
            for worker, tiers in self.model.held.items():
                place = self.index._slots.of.get(worker)
                assert place is not None
                held = {block for run in runs._all for at, block in enumerate(run.blocks) if run.held(place) >> at & 1}
                assert held == tiers[tier]

    def _held(self, worker: WorkerRank, tier: Tier) -> list[int]:
        return sorted(self.model.held[worker][tier]) if worker in self.model.held else []

    def _apply(self, worker: WorkerRank, data: KvChange, tier: Tier = Tier.Device) -> None:
        event = RouterEvent(worker_id=worker.worker_id, dp_rank=worker.dp_rank, event_id=0, data=data, tier=tier)
        expected = self.model.apply(event)
        if expected is None:
            with pytest.raises(InvalidArgument):
                self.index.apply(event)
        else:
            assert self.index.apply(event) == expected


IndexAgainstNaiveModel.TestCase.settings = settings(
    max_examples=max(200, settings().max_examples), stateful_step_count=40, deadline=None
)
TestIndexAgainstNaiveModel = IndexAgainstNaiveModel.TestCase
