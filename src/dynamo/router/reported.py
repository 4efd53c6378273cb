"""The load that workers report: beside our own bookings, all that is known of what others send them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from dynamo.kv.subjects import KV_METRICS, LOAD_REPEATED, Listening
from dynamo.protocols.card import MAX_RANKS
from dynamo.protocols.instance import Instance
from dynamo.protocols.kv import ActiveLoad, WorkerRank
from dynamo.router.stats import RouterStats
from dynamo.runtime.events import EventPlane
from dynamo.runtime.instances import InstanceSet

log = logging.getLogger(__name__)

NOTHING = ActiveLoad(worker_id=0)
MISSED = 4
"""The report of a worker that has missed so many repetitions is dropped."""
NOTIFY_AFTER = 0.02
"""Seconds. Hundreds of workers may report at once: waiting requests are reconsidered once for all of them."""


class ReportedLoads:
    """`changed` is called shortly after reports have arrived or were dropped."""

    def __init__(
        self,
        events: EventPlane,
        instances: InstanceSet,
        stats: RouterStats,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._instances = instances
        self._stats = stats
        self._changed = changed
        self._notifying: asyncio.TimerHandle | None = None
        self._loads: dict[tuple[int, int], ActiveLoad] = {}
        self._received_at: dict[tuple[int, int], float] = {}
        self._decode = msgspec.msgpack.Decoder(ActiveLoad).decode
        self._unfollow = instances.follow(self._member_changed)
        self._listening = Listening(events, instances, KV_METRICS, self._receive)
        self._sweeping = asyncio.create_task(self._sweep())

    def get(self, worker: WorkerRank) -> ActiveLoad:
        return self._loads.get(worker, NOTHING)

    def all(self) -> list[tuple[WorkerRank, ActiveLoad]]:
        return [(WorkerRank(*key), load) for key, load in self._loads.items()]

    async def close(self) -> None:
        self._unfollow()
        if self._notifying:
            self._notifying.cancel()
        self._sweeping.cancel()
        await asyncio.gather(self._sweeping, return_exceptions=True)
        await self._listening.close()

    def _receive(self, data: bytes) -> None:
        try:
            load = self._decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if not self._stats.malformed:
                log.warning("ignoring malformed load reports: %s; further ones are only counted", error)
            self._stats.malformed += 1
            return
        if load.worker_id in self._instances and load.dp_rank < MAX_RANKS:
            loop = asyncio.get_running_loop()
            self._loads[load.worker_id, load.dp_rank] = load
            self._received_at[load.worker_id, load.dp_rank] = loop.time()
            if self._notifying is None:
                self._notifying = loop.call_later(NOTIFY_AFTER, self._notify)

    def _notify(self) -> None:
        self._notifying = None
        self._changed()

    def _member_changed(self, instance_id: int, instance: Instance | None) -> None:
        if instance is None:
            self._drop([key for key in self._loads if key[0] == instance_id])

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(LOAD_REPEATED)
            since = asyncio.get_running_loop().time() - MISSED * LOAD_REPEATED
            if silent := [key for key, at in self._received_at.items() if at < since]:
                self._drop(silent)
                self._changed()

    def _drop(self, keys: list[tuple[int, int]]) -> None:
        for key in keys:
            del self._loads[key], self._received_at[key]
