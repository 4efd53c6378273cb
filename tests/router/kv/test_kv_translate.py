from __future__ import annotations

from typing import Any

import pytest

from dynamo.kv.engine_events import EngineBatch, EngineCleared, EngineRemoved, EngineStored
from dynamo.kv.hashing import prompt_hashes
from dynamo.kv.translate import Translated, Translator
from dynamo.protocols.kv import Cleared, Removed, RouterEvent, Stored, Tier, WorkerRank
from dynamo.router.kv.index.index import Index
from dynamo.router.kv.index.overlaps import Overlap


def stored(hashes: list[int], tokens: list[int], parent: int | None = None, **more: Any) -> EngineStored:
    given = {"block_size": 2, "tier": Tier.Device, **more}
    return EngineStored(block_hashes=hashes, parent_hash=parent, token_ids=tokens, **given)


def removed(hashes: list[int], **more: Any) -> EngineRemoved:
    return EngineRemoved(block_hashes=hashes, **{"tier": Tier.Device, **more})


class Rank:
    def __init__(self) -> None:
        self.translator = Translator(worker_id=9, dp_rank=1, block_size=2)
        self.index = Index()
        self.events: list[RouterEvent] = []

    def see(self, *events: EngineStored | EngineRemoved | EngineCleared) -> Translated:
        out = self.translator.translate(EngineBatch(timestamp=0.0, events=list(events), dp_rank=1))
        for event in out.events:
            self.index.apply(event)
        self.events += out.events
        return out

    def depth(self, tokens: list[int], tier: Tier = Tier.Device, **salt: str) -> int:
        overlap = self.index.match(prompt_hashes(tokens, 2, **salt)).get(WorkerRank(9, 1), Overlap())
        return getattr(overlap, tier.value)


@pytest.fixture
def rank() -> Rank:
    return Rank()


def test_events_are_numbered_without_gaps_and_name_their_rank(rank: Rank) -> None:
    rank.see(stored([1, 2], [5, 6, 7, 8]), stored([3], [1, 1], tier=None), removed([2]), EngineCleared())
    assert [(e.worker_id, e.dp_rank, e.event_id) for e in rank.events] == [(9, 1, 0), (9, 1, 1), (9, 1, 2)]
    assert [type(e.data) for e in rank.events] == [Stored, Removed, Cleared]


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
    assert rank.see(removed([1])).events == []
    assert rank.depth([5, 6]) == 1
    rank.see(removed([1]))
    assert rank.depth([5, 6]) == 0


def test_a_wrong_block_size_is_said_and_nothing_that_hangs_on_it_is_published(rank: Rank) -> None:
    out = rank.see(stored([1], [5, 6, 7, 8], block_size=4), stored([2], [7, 8], parent=1), removed([1, 2]))
    assert out.events == []
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
    assert rank.see(stored([5], [1, 1], group=2)).events == []


def test_pairs_are_hashed_with_the_token_after_them(rank: Rank) -> None:
    out = rank.see(stored([1, 2], [5, 6, 7, 8, 9], eagle=True))
    (event,) = out.events
    assert isinstance(event.data, Stored)
    assert event.data.tokens_hashes != prompt_hashes([5, 6, 7, 8], 2)
    assert len(event.data.block_hashes) == 2
