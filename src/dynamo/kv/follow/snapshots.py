"""Requests snapshots of workers' KV caches."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from dynamo.kv.messages import (
    KV_WIRE_VERSION,
    SNAPSHOT_ENDPOINT,
    ComponentName,
    KvSnapshot,
    SnapshotRequest,
    WorkerRank,
)
from dynamo.protocols.errors import StreamIncomplete
from dynamo.protocols.instance import Instance
from dynamo.runtime import DistributedRuntime, EndpointId
from dynamo.runtime.client import Client, Inbox, Stream


class Snapshots:
    """One client per component. `on_reachable` is called with each worker that can now be asked for snapshots."""

    def __init__(
        self, runtime: DistributedRuntime, on_reachable: Callable[[int], None], *, timeout: float, concurrent: int
    ) -> None:
        self._runtime = runtime
        self._on_reachable = on_reachable
        self._timeout = timeout
        self._slots = asyncio.Semaphore(concurrent)
        self._clients: dict[ComponentName, asyncio.Task[Client]] = {}

    def connect(self, component: ComponentName) -> None:
        if component not in self._clients:
            self._clients[component] = asyncio.create_task(self._connect(component))

    async def fetch(self, worker: WorkerRank, component: ComponentName) -> KvSnapshot:
        """Raises the worker's error, or that it could not be reached, or TimeoutError."""
        client = await asyncio.shield(self._clients[component])
        async with self._slots, asyncio.timeout(self._timeout):
            request = SnapshotRequest(worker_id=worker.worker_id, dp_rank=worker.dp_rank, parts=True)
            channel = client.instance_set.channel(worker.worker_id)
            if not channel.ready:
                await channel.open()
            inbox = Inbox()
            channel.send(request, inbox.context, inbox, item_type=KvSnapshot)
            async with contextlib.aclosing(Stream(inbox, annotated=False)) as answer:
                parts: list[KvSnapshot] = [part async for part in answer]
        if not parts:
            raise StreamIncomplete("the stream ended without a snapshot")
        # The address is the requested one: a worker must not be able to overwrite what another one holds.
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

    async def _connect(self, component: ComponentName) -> Client:
        client = Client(EndpointId(*component, SNAPSHOT_ENDPOINT), self._runtime.discovery, self._runtime.plane)
        try:
            await client.start()
        except BaseException:
            await client.close()
            raise
        client.instance_set.follow(self._instance_changed)
        return client

    def _instance_changed(self, instance_id: int, instance: Instance | None) -> None:
        if instance is not None:
            self._on_reachable(instance_id)
