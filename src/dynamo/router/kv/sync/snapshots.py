"""Asks workers for snapshots of their KV caches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from dynamo.kv.subjects import SNAPSHOT_ENDPOINT, Place
from dynamo.protocols.errors import DynamoException, ProtocolError, StreamIncomplete
from dynamo.protocols.instance import Instance
from dynamo.protocols.kv import KV_WIRE_VERSION, KvSnapshot, SnapshotRequest, WorkerRank
from dynamo.runtime import DistributedRuntime, EndpointId
from dynamo.runtime.client import Client
from dynamo.runtime.context import Context
from dynamo.runtime.plane.base import Channel

T = TypeVar("T")


class Snapshots:
    """One client per component. `on_reachable` is called with each worker whose snapshots can be asked for from now."""

    def __init__(
        self,
        runtime: DistributedRuntime,
        on_reachable: Callable[[int], None],
        *,
        timeout: float,
        concurrent: int,
    ) -> None:
        self._runtime = runtime
        self._on_reachable = on_reachable
        self._timeout = timeout
        self._slots = asyncio.Semaphore(concurrent)
        self._clients: dict[Place, asyncio.Task[Client]] = {}

    def connect(self, place: Place) -> None:
        if place not in self._clients:
            self._clients[place] = asyncio.create_task(self._connect(place))

    async def fetch(self, worker: WorkerRank, place: Place) -> KvSnapshot:
        """Raises what the worker answered with, that it could not be reached, or TimeoutError."""
        client = await asyncio.shield(self._clients[place])
        async with self._slots, asyncio.timeout(self._timeout):
            channel = client.set.channel(worker.worker_id)
            request = SnapshotRequest(worker_id=worker.worker_id, dp_rank=worker.dp_rank, parts=True)
            parts = await ask(channel, request, KvSnapshot)
        # Addressed as it was asked for: a worker must not be able to overwrite what another one holds.
        return KvSnapshot(
            version=KV_WIRE_VERSION,
            worker_id=worker.worker_id,
            dp_rank=worker.dp_rank,
            last_event_id=parts[0].last_event_id,
            tiers=[tier for part in parts for tier in part.tiers],
        )

    async def close(self) -> None:
        for task in self._clients.values():
            task.cancel()
        for client in await asyncio.gather(*self._clients.values(), return_exceptions=True):
            if isinstance(client, Client):
                await client.close()

    async def _connect(self, place: Place) -> Client:
        client = Client(EndpointId(*place, SNAPSHOT_ENDPOINT), self._runtime.discovery, self._runtime.plane)
        try:
            await client.start()
        except BaseException:
            await client.close()
            raise
        client.set.follow(self._source_changed)
        return client

    def _source_changed(self, instance_id: int, instance: Instance | None) -> None:
        if instance is not None:
            self._on_reachable(instance_id)


class Items:
    """A sink that collects items and refuses tokens."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._items: list[Any] = []

    def tokens(self, ids: list[int]) -> None:
        self.fail(ProtocolError("received tokens instead of an item"))

    def item(self, value: Any) -> None:
        self._items.append(value)

    def end(self) -> None:
        if not self._items:
            self.fail(StreamIncomplete("the stream ended without an answer"))
        elif not self.answer.done():
            self.answer.set_result(self._items)

    def fail(self, error: DynamoException) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


async def ask(channel: Channel, request: Any, answer_type: type[T]) -> list[T]:
    """All items of one answer. Cancelling this call cancels the request at the worker."""
    if not channel.ready:
        await channel.open()
    context, sink = Context(), Items()
    try:
        channel.send(request, context, sink, item_type=answer_type)
        answer: list[T] = await sink.answer
        return answer
    finally:
        context.kill()
        sink.answer.cancel()
