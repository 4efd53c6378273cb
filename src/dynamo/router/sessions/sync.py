"""The bindings of sessions, exchanged with the other routers of the same workers.

They are published in batches and never acknowledged: each turn says again where its session is. A router that starts
asks, and the others answer with the bindings used last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice

import msgspec
from msgspec import Struct

from dynamo.kv.follow.subscriptions import FollowStats, Subscriptions
from dynamo.kv.messages import ComponentName, WorkerRank, subject
from dynamo.protocols.instance import Instance
from dynamo.router.sessions.affinity import Affinity, Binding
from dynamo.router.sessions.table import Key
from dynamo.runtime.events import EventPlane
from dynamo.runtime.instances import InstanceSet
from dynamo.runtime.names import new_instance_id

SESSIONS = "session_affinity_events"
FLUSH_SECONDS = 0.001
MAX_ROWS = 1024
"""Per message."""
MAX_ANSWER = 4096
"""Bindings that a starting router is told by each of the others."""


class SessionBound(Struct, array_like=True):
    owner: str
    digest: bytes
    worker_id: int | None
    """None: the session has ended."""
    dp_rank: int = 0
    since: float = 0.0
    moves: int = 0
    tokens: int = 0


class SessionsBound(Struct):
    router_id: int
    rows: list[SessionBound] = []
    asks: bool = False
    """A router has started and knows no bindings."""


class AffinitySync:
    """Publishes our bindings and learns the others', from its creation to `close`."""

    def __init__(self, affinity: Affinity, events: EventPlane, instances: InstanceSet, stats: FollowStats) -> None:
        self._affinity = affinity
        self._events = events
        self._router_id = new_instance_id()
        self._loop = asyncio.get_running_loop()
        self._outgoing: dict[Key, SessionBound] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._asking: dict[ComponentName, asyncio.Task[None]] = {}
        self._subscriptions = Subscriptions(
            events, instances, SESSIONS, SessionsBound, self._receive, stats, what="bindings of sessions"
        )
        self._unfollow: Callable[[], None] = instances.follow(self._instance_changed)
        affinity.on_change = self._changed

    async def close(self) -> None:
        self._unfollow()
        self._affinity.on_change = lambda key, binding: None
        self._flush()
        for task in self._asking.values():
            task.cancel()
        await asyncio.gather(*self._asking.values(), return_exceptions=True)
        await self._subscriptions.close()

    def _instance_changed(self, instance_id: int, instance: Instance | None) -> None:
        component = (instance.namespace, instance.component) if instance else None
        if component and component not in self._asking:
            self._asking[component] = asyncio.create_task(self._ask(component))

    async def _ask(self, component: ComponentName) -> None:
        await self._subscriptions.ready(component)
        self._publish(component, SessionsBound(self._router_id, asks=True))

    def _changed(self, key: Key, binding: Binding | None) -> None:
        self._outgoing[key] = _row(key, binding)
        if len(self._outgoing) >= MAX_ROWS:
            self._flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(FLUSH_SECONDS, self._flush)

    def _flush(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        rows, self._outgoing = list(self._outgoing.values()), {}
        if rows:
            for component in self._asking:
                self._publish(component, SessionsBound(self._router_id, rows))

    def _publish(self, component: ComponentName, message: SessionsBound) -> None:
        self._events.publish(subject(component, SESSIONS), msgspec.msgpack.encode(message))

    def _receive(self, message: SessionsBound) -> None:
        if message.router_id == self._router_id:
            return
        for row in message.rows:
            worker = None if row.worker_id is None else WorkerRank(row.worker_id, row.dp_rank)
            self._affinity.learn((row.owner, row.digest), worker, row.since, row.moves, row.tokens)
        if message.asks:
            served = ((key, one) for key, one in self._affinity.bindings.newest() if one.served)
            for key, binding in islice(served, MAX_ANSWER):
                self._changed(key, binding)


def _row(key: Key, binding: Binding | None) -> SessionBound:
    if binding is None:
        return SessionBound(*key, None)
    worker = binding.worker
    return SessionBound(*key, worker.worker_id, worker.dp_rank, binding.since, binding.moves, binding.tokens)
