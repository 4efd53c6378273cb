"""The index against a naive model, under any events in any order; `make test-deep` tries a hundred thousand of them."""

from __future__ import annotations

import random
from functools import cache

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dynamo.kv.hashing import local_hashes, salt_seed, sequence_hashes
from dynamo.protocols.errors import InvalidArgument
from dynamo.protocols.kv import Cleared, KvSnapshot, Removed, RouterEvent, Stored, Tier, TierSnapshot
from dynamo.router.kv.index.index import Index, Rejected
from dynamo.router.kv.slots import WorkerRank
from support.kv_naive import NaiveIndex

Prompt = tuple[tuple[int, ...], int]
"""Blocks of one token each, and which adapter or tenant it belongs to."""

SALTS = [salt_seed(), salt_seed("lora"), salt_seed(None, "tenant")]
KINDS = ["sequence", "common", "own", "wild"]


@cache
def local_of(prompt: Prompt) -> list[int]:
    return local_hashes(prompt[0], 1, SALTS[prompt[1]])


@cache
def chain_of(prompt: Prompt) -> list[int]:
    return sequence_hashes(local_of(prompt))


def names_of(chain: list[int], worker: WorkerRank, kind: str) -> list[int]:
    """What an engine may call its blocks: always unlike, except for `wild`, where names collide."""
    match kind:
        case "sequence":
            return chain
        case "common":
            return [block ^ 1 for block in chain]
        case "own":
            return [block ^ (worker.worker_id << 8 | worker.dp_rank << 1) for block in chain]
    return [block % 7 for block in chain]


def told_of(parts: list[TierSnapshot]) -> dict[Tier, set[tuple[int, int, int | None]]]:
    return {part.tier: set(zip(part.block_hashes, part.sequence_hashes, part.parents, strict=True)) for part in parts}


def snapshot_of(worker: WorkerRank, *tiers: TierSnapshot) -> KvSnapshot:
    return KvSnapshot(worker_id=worker.worker_id, dp_rank=worker.dp_rank, tiers=list(tiers))


WORKERS = st.sampled_from([WorkerRank(1), WorkerRank(1, 1), WorkerRank(2)])
TIERS = st.sampled_from([*[Tier.Device] * 7, Tier.Host, Tier.Disk, Tier.External])
TOKENS = st.sampled_from([(1,), (1, 1), (1, 2), (1, 1, 1), (1, 1, 2), (1, 2, 1), (1, 1, 1, 1), (2, 2, 1, 2, 1, 1, 2)])
PROMPTS = st.tuples(TOKENS, st.sampled_from([0, 0, 0, 0, 0, 1, 2]))
NAMES = st.integers(0, 6)
PLACES = st.integers(0, 7)
SOME = st.lists(st.integers(0, 31), min_size=1, max_size=2)


class IndexAgainstNaiveModel(RuleBasedStateMachine):
    """Few tokens, so that gaps, forks, returns, aliases and names with another meaning happen all the time."""

    @initialize(kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=2), odd=st.booleans())
    def begin(self, kinds: list[str], odd: bool) -> None:
        self.index = Index()
        self.model = NaiveIndex()
        self.kinds = kinds
        """What names this fleet uses: one kind, as most do, or a mixture."""
        self.odd = odd
        """Whether it also uses names that mean nothing."""
        self.asked: list[Prompt] = [((1,) * 6, 0), ((1, 2, 1), 0), ((2, 2, 1, 2, 1, 1, 2), 0), ((1, 1), 1)]

    @rule(worker=WORKERS, tier=TIERS, prompt=PROMPTS, first=PLACES, kind=st.integers(0, 1))
    def store(self, worker: WorkerRank, tier: Tier, prompt: Prompt, first: int, kind: int) -> None:
        """The rest of a prompt from some block on, under the one before it: known or not."""
        self.asked[-1] = prompt
        names = self._names(chain_of(prompt), worker, kind)
        first = max(0, first - 4) % len(names)
        self._apply(worker, Stored(names[first:], local_of(prompt)[first:], names[first - 1] if first else None), tier)

    @rule(worker=WORKERS, prompt=PROMPTS)
    def store_all(self, worker: WorkerRank, prompt: Prompt) -> None:
        self._apply(worker, Stored(self._names(chain_of(prompt), worker, 0), local_of(prompt)))

    @rule(worker=WORKERS, tier=TIERS, parent=PLACES, prompt=PROMPTS, kind=st.integers(0, 1))
    def store_under_a_block_it_holds(
        self, worker: WorkerRank, tier: Tier, parent: int, prompt: Prompt, kind: int
    ) -> None:
        if held := self._held(worker, tier):
            above = held[parent % len(held)]
            known = next(names[above] for names in self.model.held[worker].values() if above in names)
            local = local_of(prompt)
            names = self._names(sequence_hashes(local, known), worker, kind)
            self._apply(worker, Stored(names, local, above), tier)

    @precondition(lambda self: self.odd)
    @rule(
        worker=WORKERS,
        tier=TIERS,
        parent=st.none() | NAMES,
        names=st.lists(NAMES, max_size=5),
        tokens=st.lists(st.integers(1, 2), min_size=5, max_size=6),
    )
    def store_under_any_name(
        self, worker: WorkerRank, tier: Tier, parent: int | None, names: list[int], tokens: list[int]
    ) -> None:
        self._apply(worker, Stored(names, local_of((tuple(tokens), 0))[: len(names)], parent), tier)

    @rule(worker=WORKERS, tier=TIERS, places=SOME)
    def evict_what_it_holds(self, worker: WorkerRank, tier: Tier, places: list[int]) -> None:
        if held := self._held(worker, tier):
            self._apply(worker, Removed([held[place % len(held)] for place in places]), tier)

    @rule(worker=WORKERS, tier=TIERS, prompt=PROMPTS, first=PLACES, kind=st.integers(0, 1))
    def evict_from_the_end(self, worker: WorkerRank, tier: Tier, prompt: Prompt, first: int, kind: int) -> None:
        names = self._names(chain_of(prompt), worker, kind)
        self._apply(worker, Removed(names[first % len(names) :][::-1]), tier)

    @precondition(lambda self: self.odd)
    @rule(worker=WORKERS, tier=TIERS, names=st.lists(NAMES, max_size=5))
    def evict_any_name(self, worker: WorkerRank, tier: Tier, names: list[int]) -> None:
        self._apply(worker, Removed(names), tier)

    @rule(worker=WORKERS, what=st.sampled_from(["clear", "leave", "itself", "restart", "malformed", "malformed"]))
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
                    told = msgspec.msgpack.encode(snapshot_of(known, *self.index.snapshot(known)))
                    fresh.replace(msgspec.msgpack.decode(told, type=KvSnapshot))
                self.index = fresh
            case "malformed":
                self._apply(worker, Stored([1, 2], [1]))
                for names, chain, parents in (([5, 6], [5], [1]), ([5], [5], [1, 2]), ([5], [6], [6])):
                    part = TierSnapshot(tier=Tier.Device, block_hashes=names, sequence_hashes=chain, parents=[*parents])
                    with pytest.raises(InvalidArgument):
                        self.index.replace(snapshot_of(worker, part))

    @rule(
        worker=WORKERS,
        parts=st.lists(st.tuples(TIERS, PROMPTS, st.sets(PLACES), st.integers(0, 1)), max_size=3),
        order=st.randoms(use_true_random=False),
    )
    def replace(
        self, worker: WorkerRank, parts: list[tuple[Tier, Prompt, set[int], int]], order: random.Random
    ) -> None:
        """A snapshot with gaps, in any order, with one tier in several parts."""
        tiers = []
        for tier, prompt, places, kind in parts:
            names, chain = self._names(chain_of(prompt), worker, kind), chain_of(prompt)
            parents = [None, *chain]
            rows = [(names[at], chain[at], parents[at]) for at in places if at < len(chain)]
            order.shuffle(rows)
            tiers.append(
                TierSnapshot(
                    tier=tier,
                    block_hashes=[row[0] for row in rows],
                    sequence_hashes=[row[1] for row in rows],
                    parents=[row[2] for row in rows],
                )
            )
        snapshot = snapshot_of(worker, *tiers)
        self.index.replace(snapshot)
        self.model.replace(snapshot)

    @invariant()
    def the_same_prompts_match_as_deep(self) -> None:
        for prompt in self.asked:
            assert self.index.match(chain_of(prompt)) == self.model.match(chain_of(prompt))

    @invariant()
    def the_same_workers_hold_the_same_blocks_under_the_same_names(self) -> None:
        assert set(self.index.workers) == set(self.model.held)
        assert {worker: told_of(parts) for worker, parts in self.index.snapshots().items()} == {
            worker: told_of(self.index.snapshot(worker)) for worker in self.index.workers
        }
        for worker, tiers in self.model.held.items():
            told = {part.tier: part for part in self.index.snapshot(worker)}
            for tier, names in tiers.items():
                assert self.index.blocks(worker, tier) == len(names)
                if not names:
                    assert tier not in told
                    continue
                part = told[tier]
                assert len(part.block_hashes) == len(names)
                assert dict(zip(part.block_hashes, part.sequence_hashes, strict=True)) == names
                assert part.parents == [self.model.parents[sequence] for sequence in part.sequence_hashes]

    @invariant()
    def nothing_is_kept_that_nobody_holds(self) -> None:
        held = {block for tiers in self.model.held.values() for names in tiers.values() for block in names.values()}
        assert len(self.index) == len(held)
        blocks = self.index._blocks
        for tier, runs in blocks.runs.items():
            assert runs.of.keys() == {block for tiers in self.model.held.values() for block in tiers[tier].values()}
        names = blocks.names
        assert names.gone.isdisjoint(held)
        assert set(names.listed.values()) <= held | names.gone
        assert len(set(names.listed.values())) == len(names.listed)
        assert len(self.index._slots.workers) <= 3

    @invariant()
    def runs_are_whole_chains_of_blocks_that_somebody_holds(self) -> None:
        for tier, runs in self.index._blocks.runs.items():
            assert {id(run) for run in runs.of.values()} == {id(run) for run in runs._all}
            assert len(runs.of) == sum(len(run.blocks) for run in runs._all)
            for run in runs._all:
                everything = (1 << len(run.blocks)) - 1
                for parent, block in zip([run.above, *run.blocks], run.blocks, strict=False):
                    assert self.model.parents[block] == parent
                    assert runs.of[block] is run
                assert all(0 < end < len(run.blocks) and not run.full >> slot & 1 for slot, end in run.upto.items())
                for slot, places in run.gaps.items():
                    assert places & (places + 1)
                    assert places < everything
                    assert not run.full >> slot & 1
                    assert slot not in run.upto
            for worker, tiers in self.model.held.items():
                slot = self.index._ranks[worker].slot
                held = {block for run in runs._all for at, block in enumerate(run.blocks) if run.held(slot) >> at & 1}
                assert held == {*tiers[tier].values()}

    def _names(self, chain: list[int], worker: WorkerRank, kind: int) -> list[int]:
        return names_of(chain, worker, self.kinds[kind % len(self.kinds)])

    def _held(self, worker: WorkerRank, tier: Tier) -> list[int]:
        return list(self.model.held[worker][tier]) if worker in self.model.held else []

    def _apply(self, worker: WorkerRank, data: Stored | Removed | Cleared, tier: Tier = Tier.Device) -> None:
        event = RouterEvent(worker_id=worker.worker_id, dp_rank=worker.dp_rank, event_id=0, data=data, tier=tier)
        outcome, expected = self.index.apply(event), self.model.apply(event)
        if expected is None:
            assert isinstance(outcome, Rejected)
        else:
            assert outcome == expected


IndexAgainstNaiveModel.TestCase.settings = settings(
    max_examples=max(200, settings().max_examples), stateful_step_count=40, deadline=None
)
TestIndexAgainstNaiveModel = IndexAgainstNaiveModel.TestCase
