"""What happened to the workers in the last hour: who joined, left or was lost, whose health changed."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from msgspec import Struct

from dynamo.frontend.fleet import Document
from dynamo.frontend.fleet.rows import LONGEST_NAME, about_worker
from dynamo.protocols.worker_name import worker_name
from dynamo.runtime.membership import Member
from dynamo.serving.models import Models

KEPT_SECONDS = 3600.0
MOST_EVENTS = 200
MOST_GONE = 64
"""Workers that are gone and have a row, the last ones."""
SETTLE_TICKS = 2
"""Ticks from a worker's disappearance until it is said why: its farewell may come a moment after."""


class _KnownWorker(Struct):
    member: Member
    health: str
    connected: bool = False
    """This server has had a connection to it."""
    gone_at: float = 0.0
    ticks_gone: int = 0


class _WorkerEvent(Struct, frozen=True):
    time: float
    kind: str
    seen: _KnownWorker


class FleetLog:
    """Compares the workers with those of the last `tick`, once a second; bounded in time and in number."""

    def __init__(self, models: Models, clock: Callable[[], float] = time.time) -> None:
        self._models = models
        self._clock = clock
        self._known: dict[str, _KnownWorker] | None = None
        """By path; None until the first tick."""
        self._leaving: dict[str, _KnownWorker] = {}
        self._events: deque[tuple[int, _WorkerEvent]] = deque(maxlen=MOST_EVENTS)
        self._gone: deque[tuple[str, str, _KnownWorker]] = deque(maxlen=MOST_GONE)
        self._numbered = 0

    def tick(self) -> None:
        now = self._clock()
        known, self._known = self._known, {}
        for member in self._models.workers():
            if member.instance is None:
                continue
            health = self._models.health(member)
            seen = known.pop(member.path, None) if known else None
            if seen is None:
                seen = _KnownWorker(member, health)
                if known is not None:
                    self._add(now, "joined", seen)
            elif seen.health != health:
                self._add(now, "ready again" if health == "ready" else health, seen)
            seen.member, seen.health = member, health
            self._look(seen)
            self._known[member.path] = seen
        for path, seen in (known or {}).items():
            seen.gone_at = now
            self._leaving[path] = seen
        self._settle(now)
        self._forget(now - KEPT_SECONDS)

    def _look(self, seen: _KnownWorker) -> None:
        if seen.member.instance and not seen.connected:
            seen.connected = self._models.channel(seen.member.instance).ready

    def _settle(self, now: float) -> None:
        for path, seen in tuple(self._leaving.items()):
            instance = seen.member.instance
            has_ended = instance is not None and self._models.channel(instance).announced_end
            seen.ticks_gone += 1
            if has_ended or seen.ticks_gone > SETTLE_TICKS:
                del self._leaving[path]
                state = "left" if has_ended else "lost" if seen.connected else "gone"
                self._gone.append((path, state, seen))
                self._add(seen.gone_at, state, seen)

    def _add(self, now: float, kind: str, seen: _KnownWorker) -> None:
        self._numbered += 1
        self._events.append((self._numbered, _WorkerEvent(now, kind, seen)))

    def _forget(self, before: float) -> None:
        while self._events and self._events[0][1].time < before:
            self._events.popleft()
        while self._gone and self._gone[0][2].gone_at < before:
            self._gone.popleft()

    def event_rows(self) -> Document:
        return {str(number): self._event_row(event) for number, event in self._events}

    def _event_row(self, event: _WorkerEvent) -> Document:
        member = event.seen.member
        row: Document = {"time": round(event.time, 3), "kind": event.kind, "worker_id": str(member.instance_id)}
        row["name"] = worker_name(member.instance_id)
        if member.card:
            row["model"] = member.card.name[:LONGEST_NAME]
        if event.kind in ("lost", "gone", "left") and (moved := self._models.moved(member)):
            row["moved"] = moved
        return row

    def gone_rows(self) -> Document:
        """The workers that are not there any more, as rows of workers."""
        return {
            f"{path}/{seen.gone_at:.3f}": self._gone_row(state, seen)
            for path, state, seen in self._gone
            if path not in (self._known or {})
        }

    def _gone_row(self, state: str, seen: _KnownWorker) -> Document:
        assert seen.member.card
        row = about_worker(seen.member, seen.member.card)
        return {**row, "health": state, "gone_at": round(seen.gone_at, 3), "moved": self._models.moved(seen.member)}
