from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.kv.hashing import local_hashes, prompt_hashes, sequence_hashes
from dynamo.kv.messages import Cleared, KvChange, Removed, Stored, Tier
from dynamo.kv.publish.engine_events import EngineBatch, EngineCleared, EngineRemoved, EngineStored
from dynamo.kv.publish.translate import Translated, Translator


def stored(hashes: list[int], tokens: list[int], parent: int | None = None, **more: Any) -> EngineStored:
    given = {"block_size": 2, "tier": Tier.Device, **more}
    return EngineStored(block_hashes=hashes, parent_hash=parent, token_ids=tokens, **given)


def removed(hashes: list[int], **more: Any) -> EngineRemoved:
    return EngineRemoved(block_hashes=hashes, **{"tier": Tier.Device, **more})


class Rank:
    """A rank's engine, its translator, and what a router ends up with."""

    def __init__(self) -> None:
        self.translator = Translator(2)
        self.changes: list[tuple[Tier, KvChange]] = []
        self.held: dict[Tier, set[int]] = {tier: set() for tier in Tier}

    def see(self, *events: EngineStored | EngineRemoved | EngineCleared) -> Translated:
        out = self.translator.translate(EngineBatch(events=list(events), dp_rank=1))
        self.changes += out.changes
        for tier, change in out.changes:
            self._apply(tier, change)
        return out

    def _apply(self, tier: Tier, change: KvChange) -> None:
        """Refuses what is not a net change."""
        held = self.held[tier]
        match change:
            case Stored(hashes, parent):
                assert parent is None or any(parent in blocks for blocks in self.held.values())
                assert hashes
                assert len(set(hashes)) == len(hashes)
                assert held.isdisjoint(hashes)
                held.update(hashes)
            case Removed(hashes):
                assert hashes
                assert len(set(hashes)) == len(hashes)
                assert held.issuperset(hashes)
                held.difference_update(hashes)
            case Cleared():
                for blocks in self.held.values():
                    blocks.clear()

    def depth(self, tokens: list[int], tier: Tier = Tier.Device, **salt: str) -> int:
        """How far this tier goes on where the faster ones end."""
        chain, at = prompt_hashes(tokens, 2, **salt), 0
        for one in Tier:
            begin = at
            while at < len(chain) and chain[at] in self.held[one]:
                at += 1
            if one is tier:
                return at - begin
        raise AssertionError


@pytest.fixture
def rank() -> Rank:
    return Rank()


def test_an_engines_chain_is_found_by_the_prompts_hashes(rank: Rank) -> None:
    rank.see(stored([1, 2], [5, 6, 7, 8]), stored([3], [9, 9], parent=2))
    assert rank.depth([5, 6, 7, 8, 9, 9, 1]) == 3


def test_a_salt_named_on_the_first_block_holds_for_the_whole_chain(rank: Rank) -> None:
    rank.see(stored([1], [5, 6], cache_salt="t"), stored([2], [7, 8], parent=1))
    assert rank.depth([5, 6, 7, 8], cache_salt="t") == 2
    assert rank.depth([5, 6, 7, 8]) == 0


def test_a_copy_in_a_slower_tier_keeps_the_salt_that_its_event_leaves_out(rank: Rank) -> None:
    rank.see(stored([1], [5, 6], cache_salt="t"), stored([2], [7, 8], parent=1))
    rank.see(stored([1, 2], [5, 6, 7, 8], tier=Tier.Host), removed([1, 2]))
    rank.see(stored([2], [7, 8], parent=1, tier=Tier.Disk), stored([1], [5, 6], tier=Tier.Disk))
    assert rank.depth([5, 6, 7, 8], Tier.Host) == 0
    assert rank.depth([5, 6, 7, 8], Tier.Host, cache_salt="t") == 2
    rank.see(removed([1, 2], tier=Tier.Host))
    assert rank.depth([5, 6, 7, 8], Tier.Disk) == 0
    assert rank.depth([5, 6, 7, 8], Tier.Disk, cache_salt="t") == 2


def test_a_copy_in_a_slower_tier_of_a_block_that_was_left_out_is_left_out_too(rank: Rank) -> None:
    rank.see(stored([1, 2, 3], [5, 6, 7, 8, 9, 9], opaque=frozenset({1})))
    rank.see(stored([1, 2, 3], [5, 6, 7, 8, 9, 9], tier=Tier.Host), removed([1, 2, 3]))
    rank.see(stored([2], [7, 8], parent=1, tier=Tier.Disk))
    assert rank.depth([5, 6, 7, 8, 9, 9], Tier.Host) == 1
    assert rank.depth([5, 6, 7, 8, 9, 9], Tier.Disk) == 0


def test_a_block_without_tokens_in_a_slower_tier_is_known_when_it_comes_back_to_the_device(rank: Rank) -> None:
    rank.see(stored([1], [], block_size=0, tier=Tier.Host), stored([1], [5, 6]))
    assert rank.depth([5, 6]) == 1


def test_a_block_stored_twice_is_removed_with_the_second_removal(rank: Rank) -> None:
    rank.see(stored([1], [5, 6]), stored([1], [5, 6]))
    assert rank.see(removed([1])).changes == []
    assert rank.depth([5, 6]) == 1
    rank.see(removed([1]))
    assert rank.depth([5, 6]) == 0


def test_a_wrong_block_size_is_said_and_nothing_that_hangs_on_it_is_published(rank: Rank) -> None:
    out = rank.see(stored([1], [5, 6, 7, 8], block_size=4), stored([2], [7, 8], parent=1), removed([1, 2]))
    assert out.changes == []
    assert out.skipped == ["blocks of 4 tokens where the model card says 2", "the parent block was left out"]


@pytest.mark.parametrize(
    ("event", "indexed", "reason"),
    [
        (stored([1, 2, 3], [5, 6, 7, 8, 9]), 2, "5 tokens do not fill 3 blocks"),
        (stored([1, 2], [5, 6, 7, 8], opaque=frozenset({1})), 1, "content depends on more than tokens"),
        (stored([1, 1], [5, 6, 7, 8]), 0, "the same block twice in one event"),
        (stored([1], [], block_size=0), 0, "blocks without their tokens"),
        (stored([1], [5, 6], local=False), 0, "the block lies with another worker"),
        (stored([1], [5, 6], tier=None), 0, "stored in an unknown medium"),
        (stored([1], [5, 6], group=2), 0, "group 2 of unknown kind"),
        (stored([1], [5, 6], group=0, kind="mamba"), 0, "cache of kind mamba"),
        (stored([1], [5, 6], parent=99), 0, "parent block 99 is unknown"),
        (stored([1, 2], [5, 6, 7, 8], parent=2), 0, "the same block twice in one event"),
    ],
)
def test_what_cannot_be_indexed_is_left_out_with_a_reason(
    rank: Rank, event: EngineStored, indexed: int, reason: str
) -> None:
    assert rank.see(event).skipped == [reason]
    assert rank.depth([5, 6, 7, 8, 9]) == indexed


def test_the_kind_of_a_group_is_remembered(rank: Rank) -> None:
    rank.see(stored([1], [5, 6], group=1, kind="full_attention"))
    rank.see(stored([2], [7, 8], parent=1, group=1))
    assert rank.depth([5, 6, 7, 8]) == 2
    rank.see(stored([4], [7, 8], group=2, kind="sliding_window"))
    assert rank.see(stored([5], [1, 1], group=2)).changes == []


def test_pairs_are_hashed_with_the_token_after_them(rank: Rank) -> None:
    out = rank.see(stored([1, 2], [5, 6, 7, 8, 9], eagle=True))
    assert out.changes == [(Tier.Device, Stored(sequence_hashes(local_hashes([5, 6, 7, 8, 9], 2, eagle=True))))]
    assert rank.depth([5, 6, 7, 8]) == 0


def test_a_block_with_two_names_is_announced_once_and_removed_with_the_second(rank: Rank) -> None:
    rank.see(stored([1], [5, 6]))
    assert rank.see(stored([9], [5, 6]), removed([1])).changes == []
    assert rank.depth([5, 6]) == 1
    rank.see(stored([2], [7, 8], parent=9), removed([9]))
    assert rank.held[Tier.Device] == {prompt_hashes([5, 6, 7, 8], 2)[1]}


def test_of_a_chain_only_the_blocks_that_were_not_there_are_announced(rank: Rank) -> None:
    chain = prompt_hashes([5, 6, 7, 8, 9, 9, 1, 1], 2)
    rank.see(stored([1, 2, 3], [5, 6, 7, 8, 9, 9]), removed([1]))
    out = rank.see(stored([1, 2, 3, 4], [5, 6, 7, 8, 9, 9, 1, 1]))
    assert out.changes == [(Tier.Device, Stored(chain[:1])), (Tier.Device, Stored(chain[3:], chain[2]))]


def test_a_name_given_to_other_tokens_leaves_the_old_block(rank: Rank) -> None:
    rank.see(stored([1, 2], [5, 6, 7, 8]), stored([2], [7, 8], parent=1))
    rank.see(stored([2], [1, 1], parent=1))
    assert rank.held[Tier.Device] == set(prompt_hashes([5, 6, 1, 1], 2))
    rank.see(removed([2]))
    assert rank.held[Tier.Device] == set(prompt_hashes([5, 6], 2))


def test_a_block_goes_on_from_its_parent_in_another_tier(rank: Rank) -> None:
    rank.see(stored([1], [5, 6], tier=Tier.Host), stored([2], [7, 8], parent=1))
    assert rank.held[Tier.Device] == {prompt_hashes([5, 6, 7, 8], 2)[1]}


def test_what_was_known_before_a_clear_is_a_parent_no_more(rank: Rank) -> None:
    rank.see(stored([1], [5, 6]), stored([2], [7, 8], opaque=frozenset({0})), EngineCleared())
    assert rank.see(stored([3], [7, 8], parent=1)).skipped == ["parent block 1 is unknown"]
    assert rank.see(stored([3], [7, 8], parent=2)).skipped == ["parent block 2 is unknown"]


class NaiveEngine:
    """Per tier: what each name means and how often it was stored."""

    def __init__(self) -> None:
        self.names: dict[Tier, dict[int, tuple[int, int]]] = {tier: {} for tier in Tier}

    def see(self, event: EngineStored | EngineRemoved | EngineCleared) -> None:
        match event:
            case EngineCleared():
                for names in self.names.values():
                    names.clear()
            case EngineStored():
                self._store(event)
            case EngineRemoved():
                assert event.tier
                names = self.names[event.tier]
                for name in event.block_hashes:
                    block, count = names.get(name, (0, 0))
                    if count > 1:
                        names[name] = (block, count - 1)
                    elif count:
                        del names[name]

    def _store(self, event: EngineStored) -> None:
        assert event.tier
        parent = None
        if event.parent_hash is not None:
            known = [names[event.parent_hash][0] for names in self.names.values() if event.parent_hash in names]
            if not known or event.parent_hash in event.block_hashes:
                return
            parent = known[0]
        if len(set(event.block_hashes)) < len(event.block_hashes):
            return
        names = self.names[event.tier]
        chain = sequence_hashes(local_hashes(event.token_ids, 2), parent)
        for name, block in zip(event.block_hashes, chain, strict=True):
            before, count = names.get(name, (block, 0))
            names[name] = (block, count + 1) if before == block else (block, 1)

    def held(self) -> dict[Tier, set[int]]:
        return {tier: {block for block, _ in names.values()} for tier, names in self.names.items()}


NAMES = st.lists(st.integers(0, 5), min_size=1, max_size=4)
TIERS = st.sampled_from([Tier.Device, Tier.Device, Tier.Host, Tier.Disk])


@st.composite
def stores(draw: st.DrawFn) -> EngineStored:
    """Few names and fewer tokens: aliases, repeated and unknown names, and names with another meaning."""
    names = draw(NAMES)
    tokens = [token for _ in names for token in draw(st.sampled_from([(1, 1), (1, 2)]))]
    return stored(names, tokens, draw(st.none() | st.integers(0, 6)), tier=draw(TIERS))


REMOVALS = st.builds(lambda names, tier: removed(names, tier=tier), NAMES, TIERS)
EVENTS = st.lists(st.one_of(stores(), stores(), REMOVALS, st.just(EngineCleared())), max_size=30)


@given(st.lists(EVENTS, max_size=4))
def test_a_router_ends_up_with_what_a_naive_engine_holds(batches: list[list[Any]]) -> None:
    rank, engine = Rank(), NaiveEngine()
    for batch in batches:
        rank.see(*batch)
        for event in batch:
            engine.see(event)
        assert rank.held == engine.held()
