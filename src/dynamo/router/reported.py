"""What workers say of their own load: beside our bookings, all we know of what others send them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from dynamo.kv.subjects import KV_METRICS, LOAD_REPEATED, Listening
from dynamo.protocols.card import MAX_RANKS
from dynamo.protocols.instance import Instance
from dynamo.protocols.kv import ActiveLoad
from dynamo.router.kv.slots import WorkerRank
from dynamo.router.stats import RouterStats
from dynamo.runtime.events import EventPlane
from dynamo.runtime.instances import InstanceSet

log = logging.getLogger(__name__)

NOTHING = ActiveLoad(worker_id=0)
MISSED = 4
"""A worker that has not repeated its report for so many turns is taken to have said nothing."""
TOLD_AFTER = 0.02
"""Hundreds of workers may report every moment: whoever waits looks again once for all of them."""


class ReportedLoads:
    """`changed` is called some time after reports have come, or were forgotten."""

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
        self._telling: asyncio.TimerHandle | None = None
        self._loads: dict[tuple[int, int], ActiveLoad] = {}
        self._heard: dict[tuple[int, int], float] = {}
        self._decode = msgspec.msgpack.Decoder(ActiveLoad).decode
        self._forget = instances.follow(self._member_changed)
        self._listening = Listening(events, instances, KV_METRICS, self._hear)
        self._sweeping = asyncio.create_task(self._sweep())

    def get(self, worker: WorkerRank) -> ActiveLoad:
        return self._loads.get(worker, NOTHING)

    def all(self) -> list[tuple[WorkerRank, ActiveLoad]]:
        return [(WorkerRank(*key), load) for key, load in self._loads.items()]

    async def close(self) -> None:
        self._forget()
        if self._telling:
            self._telling.cancel()
        self._sweeping.cancel()
        await asyncio.gather(self._sweeping, return_exceptions=True)
        await self._listening.close()

    def _hear(self, data: bytes) -> None:
        try:
            load = self._decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if not self._stats.malformed:
                log.warning("ignoring a load report that is none: %s; further ones are only counted", error)
            self._stats.malformed += 1
            return
        if load.worker_id in self._instances and load.dp_rank < MAX_RANKS:
            loop = asyncio.get_running_loop()
            self._loads[load.worker_id, load.dp_rank] = load
            self._heard[load.worker_id, load.dp_rank] = loop.time()
            if self._telling is None:
                self._telling = loop.call_later(TOLD_AFTER, self._tell)

    def _tell(self) -> None:
        self._telling = None
        self._changed()

    def _member_changed(self, instance_id: int, instance: Instance | None) -> None:
        if instance is None:
            self._drop([key for key in self._loads if key[0] == instance_id])

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(LOAD_REPEATED)
            since = asyncio.get_running_loop().time() - MISSED * LOAD_REPEATED
            if silent := [key for key, heard in self._heard.items() if heard < since]:
                self._drop(silent)
                self._changed()

    def _drop(self, keys: list[tuple[int, int]]) -> None:
        for key in keys:
            del self._loads[key], self._heard[key]
