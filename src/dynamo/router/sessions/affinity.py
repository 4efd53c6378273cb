"""Which worker each session keeps to: the one that served its last turn, until the session has been idle for long.

docs/sessions.md says what that means for a choice.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Struct

from dynamo.kv.messages import WorkerRank
from dynamo.protocols.engine import Session
from dynamo.router.sessions.table import MOST_SESSIONS, Key, SessionTable, key_of


class Binding(Struct):
    """A session at a worker."""

    worker: WorkerRank
    since: float
    """When it came there, in seconds since 1970."""
    idle_since: float
    tokens: int = 0
    """The length of its last turn there, prompt and answer."""
    moves: int = 0
    running: int = 0
    """Turns under way, of this router."""
    served: bool = False
    """A turn got its first token there."""

    @property
    def order(self) -> tuple[int, float, WorkerRank]:
        """Routers that disagree all keep the lowest: the latest move, and of several first turns the earliest."""
        return -self.moves, self.since, self.worker


class SessionTurn:
    """One request of a session, from its placement to its end."""

    __slots__ = ("_affinity", "_final", "_key", "_tokens", "_worker")

    def __init__(self, affinity: Affinity, key: Key, worker: WorkerRank, tokens: int, *, final: bool) -> None:
        self._affinity = affinity
        self._key = key
        self._worker = worker
        self._tokens = tokens
        self._final = final

    def served(self) -> None:
        """The first token has come."""
        self._affinity._served(self._key, self._worker, self._tokens)

    def ended(self, output_tokens: int) -> None:
        self._affinity._ended(self._key, self._worker, self._tokens + output_tokens, final=self._final)


class Affinity:
    """The bindings of one router.

    `on_change(key, binding)` is called for what other routers must know; None says that the session has ended.
    """

    def __init__(
        self,
        ttl: float,
        *,
        hard: bool = False,
        clock: Callable[[], float] = time.time,
        on_change: Callable[[Key, Binding | None], None] = lambda key, binding: None,
        most: int = MOST_SESSIONS,
    ) -> None:
        self.hard = hard
        """Whether a session stays with its worker however much that has to do."""
        self.bindings: SessionTable[Binding] = SessionTable(most)
        self.on_change = on_change
        self._ttl = ttl
        self._clock = clock

    def bound(self, session: Session) -> Binding | None:
        return self._live(key_of(session))

    def begin(self, session: Session, worker: WorkerRank, prompt_tokens: int) -> SessionTurn:
        """A turn is placed. The first turn of a session binds it at once, so that turns beside it go along."""
        key, now = key_of(session), self._clock()
        binding = self._live(key)
        if binding is None:
            binding = Binding(worker, now, now)
            self.bindings.add(key, binding)
        if binding.worker == worker:
            binding.running += 1
        return SessionTurn(self, key, worker, prompt_tokens, final=session.final)

    def learn(self, key: Key, worker: WorkerRank | None, since: float, moves: int, tokens: int) -> None:
        """What another router says; without a worker, the session has ended."""
        known = self._live(key)
        if worker is None:
            if known is not None and not known.running:
                self.bindings.remove(key)
            return
        now = self._clock()
        told = Binding(worker, since, now, tokens, moves, served=True)
        if known is None:
            self.bindings.add(key, told)
        elif known.worker == worker:
            known.idle_since, known.tokens, known.served = now, tokens, True
            known.moves, known.since = max(known.moves, moves), min(known.since, since)
            self.bindings.used(key)
        elif not known.served or told.order < known.order:
            known.worker, known.since, known.moves, known.tokens = worker, since, moves, tokens
            known.idle_since, known.running, known.served = now, 0, True
            self.bindings.used(key)

    def _live(self, key: Key) -> Binding | None:
        binding = self.bindings.get(key)
        if binding is not None and not binding.running and self._clock() - binding.idle_since > self._ttl:
            self.bindings.remove(key)
            return None
        return binding

    def _served(self, key: Key, worker: WorkerRank, tokens: int) -> None:
        binding = self.bindings.get(key)
        if binding is None:
            return
        if binding.worker != worker:
            # The last turn ran elsewhere: the worker was gone, or too busy.
            binding.worker, binding.since, binding.running = worker, self._clock(), 1
            binding.moves += 1
            binding.served = False
        if binding.served:
            self.bindings.used(key)
        binding.served, binding.tokens = True, tokens
        self.on_change(key, binding)

    def _ended(self, key: Key, worker: WorkerRank, tokens: int, *, final: bool) -> None:
        binding = self.bindings.get(key)
        if binding is None or binding.worker != worker:
            return
        binding.running = max(0, binding.running - 1)
        binding.idle_since = self._clock()
        if binding.running:
            return
        if final or not binding.served:
            # A session whose first turn failed is free.
            self.bindings.remove(key)
            if binding.served:
                self.on_change(key, None)
            return
        binding.tokens = tokens
        self.on_change(key, binding)
