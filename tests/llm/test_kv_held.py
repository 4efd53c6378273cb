from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dynamo.llm.kv_held import Held
from dynamo.protocols.kv import Cleared, Removed, RouterEvent, Stored, Tier, TierSnapshot
from dynamo.router.kv import Index, WorkerRank, sequence_hashes

ME = WorkerRank(7, 1)
STORE = st.tuples(st.just("store"), st.integers(0, 99), st.integers(1, 4))
REMOVE = st.tuples(st.just("remove"), st.integers(0, 99), st.integers(1, 4))
CLEAR = st.tuples(st.just("clear"), st.just(0), st.just(0))


def told(history: list[tuple[str, int, int]]) -> list[Stored | Removed | Cleared]:
    """What an exact source would tell: new blocks under nothing or a block it holds, and only held ones removed."""
    held: list[int] = []
    changes: list[Stored | Removed | Cleared] = []
    for fresh, (kind, which, count) in enumerate(history):
        if kind == "store":
            parent = ([None, *held])[which % (len(held) + 1)]
            local = [1000 * fresh + at for at in range(count)]
            chain = sequence_hashes(local, parent)
            changes.append(Stored(chain, local, parent))
            held += chain
        elif kind == "remove" and held:
            gone = [held.pop(which % len(held)) for _ in range(min(count, len(held)))]
            changes.append(Removed(gone))
        elif kind == "clear":
            changes.append(Cleared())
            held.clear()
    return changes


def rows(tiers: list[TierSnapshot]) -> set[tuple[Tier, int, int, int | None]]:
    return {
        (part.tier, *row)
        for part in tiers
        for row in zip(part.block_hashes, part.sequence_hashes, part.parents, strict=True)
    }


@given(st.lists(STORE | STORE | REMOVE | CLEAR, max_size=30))
def test_of_an_exact_source_the_plain_book_says_what_an_index_would(history: list[tuple[str, int, int]]) -> None:
    index, book = Index(), Held()
    for at, change in enumerate(told(history)):
        event = RouterEvent(worker_id=ME.worker_id, dp_rank=ME.dp_rank, event_id=at, data=change)
        assert book.apply(event) == index.apply(event)
        assert rows(book.snapshot(ME)) == rows(index.snapshot(ME))
