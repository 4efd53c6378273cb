"""Following one rank: the state machine alone, then with a simulated worker over a network that loses events."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.kv.follow.rank_sync import Action, Cursor, FollowConfig, Order, RankSync, SyncCommand, SyncState
from dynamo.kv.messages import KvChange, Removed, RouterEvent, Stored

CONFIG = FollowConfig(retry=1.0, patience=0.25, quiet=30.0, longest=8.0, buffered=4)


def event(number: int, data: KvChange | None = None) -> RouterEvent:
    return RouterEvent(worker_id=1, event_id=number, data=data or Stored([number]))


@pytest.fixture
def sync() -> RankSync:
    return RankSync(CONFIG, 0.0)


@pytest.fixture
def live(sync: RankSync) -> RankSync:
    """After a snapshot up to event 4."""
    sync.resync()
    assert sync.snapshot(4, 0.0) == []
    return sync


def test_events_follow_each_other_and_anything_else_is_stale_or_a_gap() -> None:
    cursor = Cursor()
    assert [cursor.see(n) for n in (0, 1, 1, 0, 3, 2)] == [
        Order.Next, Order.Next, Order.Stale, Order.Stale, Order.Gap, Order.Next,
    ]  # fmt: skip


def test_a_router_that_comes_later_starts_with_a_gap_until_a_snapshot_tells_it_where_it_is() -> None:
    cursor = Cursor()
    assert cursor.see(41) is Order.Gap
    cursor.last = 42
    assert [cursor.see(n) for n in (41, 42, 43)] == [Order.Stale, Order.Stale, Order.Next]


def test_a_new_rank_is_asked_once_and_its_events_wait_for_the_snapshot(sync: RankSync) -> None:
    assert sync.resync() == (SyncCommand.Fetch,)
    assert sync.resync() == ()
    assert [sync.event(event(number), 1.0) for number in (3, 4, 5)] == [(), (), ()]
    assert sync.state is SyncState.AwaitingSnapshot
    assert sync.snapshot(4, 2.0) == [event(5)]
    assert sync.state is SyncState.Live


def test_when_live_the_next_event_is_applied_and_an_older_one_ignored(live: RankSync) -> None:
    assert live.event(event(5), 1.0) == (event(5),)
    assert live.event(event(5), 1.0) == ()
    assert live.event(event(3), 1.0) == ()
    assert live.state is SyncState.Live


def test_a_gap_leads_to_a_snapshot_and_the_event_after_it_is_not_lost(live: RankSync) -> None:
    assert live.event(event(7), 1.0) == (SyncCommand.Fetch,)
    assert live.event(event(8), 1.0) == ()
    assert not live.covers(6)
    assert live.snapshot(6, 1.0) == [event(7), event(8)]
    assert live.state is SyncState.Live


def test_a_snapshot_that_does_not_connect_is_asked_for_again_ever_more_rarely(live: RankSync) -> None:
    pauses = []
    for number in (10, 20, 30):
        live.event(event(number), 1.0)
        assert live.snapshot(number - 5, 1.0) == []
        assert live.state is SyncState.BackingOff
        pauses.append(live.backoff)
        assert live.retry() == (SyncCommand.Fetch,)
        assert live.snapshot(number, 1.0) == []
    assert pauses == [0.25, 0.5, 1.0]
    live.event(event(31), 1.0)
    live.event(event(40), 1.0)
    live.snapshot(35, 1.0)
    assert live.backoff == CONFIG.patience


def test_events_beyond_the_buffer_are_dropped_and_noticed_as_a_gap(live: RankSync) -> None:
    live.event(event(6), 1.0)
    for number in range(7, 12):
        live.event(event(number), 1.0)
    assert live.snapshot(6, 1.0) == []
    assert live.state is SyncState.BackingOff


def test_a_rejected_event_leads_to_a_snapshot_that_replaces_what_is_known(live: RankSync) -> None:
    live.event(event(5), 1.0)
    assert live.rejected() == (SyncCommand.Fetch,)
    assert not live.covers(5)
    assert live.rejected() == ()


def test_a_publisher_that_numbers_anew_is_asked_even_if_it_reaches_the_same_number(live: RankSync) -> None:
    assert live.event(event(0), 1.0) == (SyncCommand.Fetch,)
    assert not live.covers(4)
    assert live.snapshot(0, 1.0) == []
    assert live.event(event(1), 1.0) == (event(1),)


def test_what_is_known_outlives_a_snapshot_that_fails(live: RankSync) -> None:
    live.resync()
    live.event(event(5), 1.0)
    assert live.failed() == [event(5)]
    assert (live.state, live.failures) == (SyncState.Live, 0)
    assert live.covers(5)


def test_without_a_snapshot_a_rank_with_a_gap_is_forgotten_and_asked_again_ever_more_rarely(live: RankSync) -> None:
    live.event(event(6), 1.0)
    pauses = []
    for failures in range(1, 6):
        assert live.failed() == [SyncCommand.Clear]
        assert (live.state, live.failures) == (SyncState.BackingOff, failures)
        pauses.append(live.backoff)
        assert live.retry() == (SyncCommand.Fetch,)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 8.0]
    assert live.snapshot(9, 1.0) == []
    assert (live.state, live.failures) == (SyncState.Live, 0)


def test_without_a_snapshot_a_rank_is_known_by_its_events_from_the_first_on(sync: RankSync) -> None:
    sync.resync()
    for number in (0, 1):
        sync.event(event(number), 1.0)
    assert sync.failed() == [SyncCommand.Clear, event(0), event(1)]
    assert sync.state is SyncState.Live
    assert sync.event(event(2), 1.0) == (event(2),)


@pytest.mark.parametrize("during", [SyncState.AwaitingSnapshot, SyncState.BackingOff])
def test_a_worker_that_becomes_reachable_is_asked_at_once(sync: RankSync, during: SyncState) -> None:
    sync.resync()
    if during is SyncState.BackingOff:
        sync.failed()
        assert sync.reachable() == (SyncCommand.Fetch,)
    else:
        assert sync.reachable() == ()
        assert sync.failed() == [SyncCommand.Clear, SyncCommand.Fetch]
    assert sync.state is SyncState.AwaitingSnapshot
    assert sync.retry() == ()


def test_a_silent_rank_is_asked_ever_more_rarely_until_it_speaks(live: RankSync) -> None:
    now, asked = 0.0, []
    for _ in range(7):
        while not live.check_silence(now):
            now += 15.0
        asked.append(now)
        live.snapshot(4, now)
    assert [after - before for before, after in itertools.pairwise(asked)] == [60, 120, 240, 480, 600, 600]
    live.event(event(5), now)
    assert live.check_silence(now + 29) == ()
    assert live.check_silence(now + 30) == (SyncCommand.Fetch,)


def test_prompts_that_stay_missing_are_waited_for_ever_longer_until_none_was_for_a_while(live: RankSync) -> None:
    waits = []
    for _ in range(4):
        waits.append(live.patience)
        assert live.prompt_missing(10.0, unknown=False) == (SyncCommand.Fetch,)
        live.snapshot(4, 10.0)
        live.prompt_found(11.0)
    assert waits == [0.25, 1.0, 4.0, 8.0]
    live.prompt_found(26.5)
    assert live.patience == CONFIG.patience


def test_prompts_of_which_no_block_is_known_are_counted_until_one_is(live: RankSync) -> None:
    for _ in range(3):
        live.prompt_missing(1.0, unknown=True)
    assert live.unknown_prompts == 3
    live.prompt_found(2.0)
    assert live.unknown_prompts == 0


class World:
    """A worker, a network that may lose and delay, and an index that does what the machine says."""

    def __init__(self) -> None:
        self.sync = RankSync(CONFIG, 0.0)
        self.known: set[int] = set()
        self.held: set[int] = set()
        self.history: list[frozenset[int]] = []
        """What the worker held after each event."""
        self.asked = False
        self.answer: tuple[int | None, frozenset[int]] | None = None
        self.perform(self.sync.resync())

    @property
    def last(self) -> int | None:
        return len(self.history) - 1 if self.history else None

    def change(self, block: int) -> RouterEvent:
        data = Removed([block]) if block in self.held else Stored([block])
        self.held ^= {block}
        self.history.append(frozenset(self.held))
        return event(len(self.history) - 1, data)

    def perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if action is SyncCommand.Fetch:
                assert not self.asked
                self.asked = True
            elif action is SyncCommand.Clear:
                self.known.clear()
            elif isinstance(action.data, Stored):
                self.known.update(action.data.sequence_hashes)
            elif isinstance(action.data, Removed):
                self.known.difference_update(action.data.sequence_hashes)
        assert self.asked == (self.sync.state is SyncState.AwaitingSnapshot)
        if self.sync._exact:
            at = self.sync._cursor.last
            assert self.known == (set() if at is None else self.history[at])

    def arrive(self) -> None:
        """The snapshot that the worker made some time ago."""
        last, blocks = self.answer or (self.last, frozenset(self.held))
        self.asked, self.answer = False, None
        if not self.sync.covers(last):
            self.known = set(blocks)
        self.perform(self.sync.snapshot(last, 0.0))

    def step(self, what: str, block: int) -> None:
        if what == "event":
            self.perform(self.sync.event(self.change(block), 0.0))
        elif what == "lost":
            self.change(block)
        elif what == "answer" and self.asked and not self.answer:
            self.answer = (self.last, frozenset(self.held))
        elif what == "arrive" and self.asked:
            self.arrive()
        elif what == "fail" and self.asked:
            self.asked, self.answer = False, None
            self.perform(self.sync.failed())
        elif what == "retry":
            self.perform(self.sync.retry())
        elif what == "reachable":
            self.perform(self.sync.reachable())
        elif what == "doubt":
            self.perform(self.sync.resync())


STEPS = ["event", "event", "event", "lost", "answer", "arrive", "fail", "retry", "reachable", "doubt"]


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 3)), max_size=60))
def test_whatever_is_lost_the_index_is_exact_or_known_not_to_be_and_ends_up_right(
    steps: list[tuple[str, int]],
) -> None:
    world = World()
    for what, block in steps:
        world.step(what, block)
    # From here on the network works: one more event shows any loss.
    world.step("event", 0)
    for _ in range(3):
        world.step("retry", 0)
        world.step("arrive", 0)
    assert world.sync.state is SyncState.Live
    assert world.known == world.held
