"""Puts one rank's events and snapshots in order: a state machine without clock, tasks or index.

Events are numbered. After a gap, a malformed event, or for a new rank, a snapshot is requested from the worker; events
that arrive meanwhile wait and are applied after it. The loss of the latest events leaves no gap. It is found in two
ways: a prompt that a worker has computed must be in its cache a moment later, and ranks that are silent for long are
asked for a snapshot, less and less often.

Inputs are methods; each returns the actions that its driver must perform, in order.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Sequence

from msgspec import Struct

from dynamo.kv.messages import RouterEvent
from dynamo.process.backoff import Backoff


class FollowConfig(Struct, frozen=True, kw_only=True):
    """Times are in seconds."""

    timeout: float = 30.0
    """The time that one snapshot may take."""
    concurrent: int = 16
    """Snapshots requested at the same time."""
    buffered: int = 1024
    """Events of a rank that may wait for its snapshot; if there are more, another snapshot is needed."""
    retry: float = 1.0
    """The pause before a failed snapshot is requested again; it doubles up to `longest`."""
    patience: float = 0.25
    """How long a computed prompt may be missing from its worker's cache.

    Some prompts are never cached, so each that stays missing quadruples it, up to `longest`; it is reset when none was
    missing for twice `longest`. Also the first pause after a snapshot with a gap to the next event; that one doubles.
    """
    quiet: float = 30.0
    """A rank silent for this long is asked for a snapshot; doubles up to 20 times while there is nothing new."""
    longest: float = 30.0
    wrong_hashes: int = 3
    """A rank with blocks that misses this number of computed prompts in a row hashes otherwise than we do."""


class SyncState(enum.Enum):
    Live = "live"
    """Events are applied as they arrive."""
    AwaitingSnapshot = "awaiting snapshot"
    """A snapshot was requested; events wait for it."""
    BackingOff = "backing off"
    """The last snapshot failed or had a gap to the next event; events wait for the next snapshot."""


class SyncCommand(enum.Enum):
    Fetch = "fetch"
    """Request a snapshot from the worker and report `snapshot` or `failed`."""
    Clear = "clear"
    """Remove the rank's blocks from the index."""


Action = RouterEvent | SyncCommand
"""An event is to be applied to the index; if that fails, report `rejected` and drop the remaining actions."""


class Order(enum.Enum):
    Next = "next"
    Stale = "stale"
    """The event was seen before."""
    Gap = "gap"
    """An event before it is missing."""


class Cursor:
    """The position in one rank's events. Until a snapshot sets it, only event 0 is the next one."""

    last: int | None = None

    def see(self, event_id: int) -> Order:
        """Tell whether an event is the next one, and advance if so."""
        expected = 0 if self.last is None else self.last + 1
        if event_id == expected:
            self.last = event_id
            return Order.Next
        return Order.Stale if event_id < expected else Order.Gap


class RankSync:
    def __init__(self, config: FollowConfig, now: float) -> None:
        self.state = SyncState.Live
        self.backoff = 0.0
        """Seconds until `retry` is due, when backing off."""
        self.patience = config.patience
        """How long the next computed prompt may be missing."""
        self.unknown_prompts = 0
        """Computed prompts in a row of which the rank holds no block, though it holds others."""
        self._config = config
        self._after_failure = Backoff(config.retry, config.longest)
        self.after_gap = Backoff(config.patience, config.longest)
        """When a snapshot has a gap to the next event; reset when events arrive without a gap."""
        self._cursor = Cursor()
        self._exact = False
        """The index holds exactly what the events up to the cursor say."""
        self._waiting: deque[RouterEvent] = deque(maxlen=config.buffered)
        """Events that wait for a snapshot."""
        self._reachable = False
        """The worker became reachable after the last snapshot was requested."""
        self._missed_at = 0.0
        self._heard_at = now
        self._quiet = config.quiet

    @property
    def failures(self) -> int:
        """Snapshots that failed in a row."""
        return self._after_failure.attempts

    def resync(self) -> Sequence[Action]:
        """Request a snapshot, unless one is already requested."""
        return self._fetch() if self.state is SyncState.Live else ()

    def event(self, event: RouterEvent, now: float) -> Sequence[Action]:
        self._heard_at = now
        self._quiet = self._config.quiet
        number = event.event_id
        if number == 0 and self._cursor.last is not None:
            self._exact = False  # the numbers start again: the publisher has restarted
        if self.state is not SyncState.Live:
            self._waiting.append(event)
            return ()
        order = self._cursor.see(number)
        if order is Order.Next:
            if self.after_gap.attempts:
                self.after_gap.reset()
            return (event,)
        if order is Order.Stale and number:
            return ()
        self._waiting.append(event)
        return self._fetch()

    def rejected(self) -> Sequence[Action]:
        """The index rejected an event, so it is no longer exact."""
        self._exact = False
        return self.resync()

    def covers(self, last_event_id: int | None) -> bool:
        """Whether the index already equals a snapshot taken after this event."""
        return self._exact and last_event_id == self._cursor.last

    def snapshot(self, last_event_id: int | None, now: float) -> Sequence[Action]:
        """A snapshot was applied to the index."""
        if self.covers(last_event_id):
            self._quiet = min(self._quiet * 2, self._config.quiet * 20)
        else:
            self._cursor.last = last_event_id
            self._exact = True
        self._heard_at = now
        self._after_failure.reset()
        events, connected = self._drain()
        if connected:
            self.state = SyncState.Live
        else:
            self._back_off(self.after_gap.pause())
        return events

    def failed(self) -> Sequence[Action]:
        """No snapshot came. The index can still be exact, if no event is missing or all events since the first wait."""
        if self._exact:
            events, connected = self._drain()
            if connected:
                return self._without_snapshot(events)
        actions: list[Action] = [SyncCommand.Clear]
        self._cursor.last = None
        self._exact = bool(self._waiting) and self._waiting[0].event_id == 0
        if self._exact:
            events, connected = self._drain()
            actions += events
            if connected:
                return self._without_snapshot(actions)
        pause = self._after_failure.pause()
        if self._reachable:
            return [*actions, *self._fetch()]
        self._back_off(pause)
        return actions

    def retry(self) -> Sequence[Action]:
        """The back-off is over."""
        return self._fetch() if self.state is SyncState.BackingOff else ()

    def reachable(self) -> Sequence[Action]:
        """The worker can now be asked for snapshots."""
        self._reachable = True
        if self.state is SyncState.BackingOff and self.failures:
            self._after_failure.reset()
            return self._fetch()
        return ()

    def check_silence(self, now: float) -> Sequence[Action]:
        """Request a snapshot if the rank has been silent for long; to be called periodically."""
        return self.resync() if now - self._heard_at >= self._quiet else ()

    def prompt_found(self, now: float) -> None:
        """A prompt that the rank has computed is in the index."""
        self.unknown_prompts = 0
        if now - self._missed_at > 2 * self._config.longest:
            self.patience = self._config.patience

    def prompt_missing(self, now: float, *, unknown: bool) -> Sequence[Action]:
        """A prompt that the rank has computed is not in the index after `patience`; `unknown`: not even its start."""
        self._missed_at = now
        self.patience = min(self.patience * 4, self._config.longest)
        self.unknown_prompts += unknown
        return self.resync()

    def _fetch(self) -> Sequence[Action]:
        self.state = SyncState.AwaitingSnapshot
        self._reachable = False
        return (SyncCommand.Fetch,)

    def _back_off(self, seconds: float) -> None:
        self.state = SyncState.BackingOff
        self.backoff = seconds

    def _without_snapshot(self, actions: list[Action]) -> list[Action]:
        self.state = SyncState.Live
        self._after_failure.reset()
        return actions

    def _drain(self) -> tuple[list[Action], bool]:
        """Take the waiting events up to the first gap; returns them, and whether there was no gap.

        The event after a gap is dropped: the next snapshot includes it, unless it is from before a restart.
        """
        events: list[Action] = []
        while self._waiting:
            event = self._waiting.popleft()
            match self._cursor.see(event.event_id):
                case Order.Gap:
                    return events, False
                case Order.Next:
                    events.append(event)
        return events, True
