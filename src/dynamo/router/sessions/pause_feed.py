"""Tells each worker of the pauses of the sessions that were last served there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from dynamo.kv.messages import ComponentName, WorkerRank, subject
from dynamo.kv.pauses import SESSION_PAUSES, SessionPause
from dynamo.protocols.engine import Session, SessionName
from dynamo.protocols.instance import Instance
from dynamo.router.sessions.pauses import PauseBook
from dynamo.router.sessions.table import MOST_SESSIONS, SessionTable, key_of
from dynamo.runtime.events import EventPlane
from dynamo.runtime.instances import InstanceSet


class PauseFeed:
    """Learns from its creation to `close`; nothing is published for a worker that has left."""

    def __init__(self, events: EventPlane, instances: InstanceSet) -> None:
        self.book = PauseBook()
        self._events = events
        self._clock = asyncio.get_running_loop().time
        self._components: dict[int, ComponentName] = {}
        self._served_by: SessionTable[WorkerRank] = SessionTable(MOST_SESSIONS)
        self._unfollow: Callable[[], None] = instances.follow(self._instance_changed)

    def close(self) -> None:
        self._unfollow()

    def began(self, session: Session, worker: WorkerRank) -> SessionName:
        """A turn is placed. Returns what its worker calls the session."""
        key = key_of(session)
        before = self._served_by.get(key)
        if before is not None:
            if before != worker:
                # What it left there is of no use any more.
                self._publish(before, SessionPause(worker_id=before.worker_id, session=_name(session), final=True))
            self._served_by.remove(key)
        self._served_by.add(key, worker)
        self.book.began(key, self._clock())
        return SessionName(_name(session), session.owner)

    def paused(self, session: Session, kind: str, returns_in: float | None = None) -> None:
        """A turn has ended: by a call of the tool `kind`, for example."""
        key = key_of(session)
        worker = self._served_by.get(key)
        if worker is None:
            return
        rates: Sequence[float] = ()
        if session.final:
            self.book.ended(key)
            self._served_by.remove(key)
        else:
            rates = self.book.paused(key, kind, self._clock())
        pause = SessionPause(
            worker_id=worker.worker_id,
            dp_rank=worker.dp_rank,
            session=_name(session),
            final=session.final,
            rates=tuple(rates),
            returns_in=returns_in,
        )
        self._publish(worker, pause)

    def _publish(self, worker: WorkerRank, pause: SessionPause) -> None:
        component = self._components.get(worker.worker_id)
        if component is not None:
            self._events.publish(subject(component, SESSION_PAUSES), msgspec.msgpack.encode(pause))

    def _instance_changed(self, instance_id: int, instance: Instance | None) -> None:
        if instance is None:
            self._components.pop(instance_id, None)
        else:
            self._components[instance_id] = instance.namespace, instance.component


def _name(session: Session) -> str:
    owner, digest = key_of(session)
    return f"{owner[:16]}{digest.hex()}"
