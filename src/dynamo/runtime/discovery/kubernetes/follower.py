"""Follows workers and their readiness in a namespace, and keeps a view of the records that count."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Generic, TypeVar

from dynamo.kubernetes.api import KubernetesApi
from dynamo.kubernetes.resources import ENDPOINT_SLICES, PODS, WORKER_METADATA, Resource
from dynamo.kubernetes.watch import Changed, ObjectRemoved, Replaced, ResourceWatch, SeenObject, Unreadable
from dynamo.runtime.discovery.kubernetes.config import KubernetesConfig
from dynamo.runtime.discovery.kubernetes.merge import (
    EndpointSlice,
    Pod,
    Published,
    Ready,
    WorkerMetadata,
    live_records,
    published,
    ready_containers,
    ready_pods,
)

log = logging.getLogger("dynamo.runtime.discovery.kubernetes")

DISCOVERED = "nvidia.com/dynamo-discovery-enabled=true"
"""The label of Services, and with that of their EndpointSlices, whose pods are workers."""

T = TypeVar("T")


class Collection(Generic[T]):
    """The objects of one resource as they are read, by name. An unreadable one keeps its last good value."""

    def __init__(self, watch: ResourceWatch[T], on_change: Callable[[], None]) -> None:
        self._watch = watch
        self._on_change = on_change
        self.objects: dict[str, T] = {}
        self.synced = asyncio.Event()

    async def follow(self) -> None:
        async with aclosing(self._watch.changes()) as changes:
            async for change in changes:
                match change:
                    case Replaced(objects):
                        names = {seen.metadata.name for seen in objects}
                        for name in self.objects.keys() - names:
                            del self.objects[name]
                        for seen in objects:
                            self._put(seen)
                        self.synced.set()
                    case Changed(seen):
                        self._put(seen)
                    case ObjectRemoved(metadata):
                        self.objects.pop(metadata.name, None)
                self._on_change()

    def _put(self, seen: SeenObject[T]) -> None:
        if isinstance(seen.object, Unreadable):
            kept = "; its last readable value stays" if seen.metadata.name in self.objects else ""
            log.warning("%s '%s' is malformed: %s%s", self._watch.resource, seen.metadata.name, seen.object.why, kept)
        else:
            self.objects[seen.metadata.name] = seen.object


class ObjectFollower:
    """Runs from `start` to `close`. `on_records` is called with all records that count, once both are known.

    Changes are gathered for a moment first: a rollout changes many objects at once.
    """

    def __init__(
        self, api: KubernetesApi, config: KubernetesConfig, on_records: Callable[[Mapping[str, bytes]], None]
    ) -> None:
        self._config = config
        self._on_records = on_records
        self._changed = asyncio.Event()
        self._published: dict[str, tuple[WorkerMetadata, Published]] = {}
        self.synced = asyncio.Event()
        by_container = config.readiness_of == "container"
        self._workers = self._collection(api, WORKER_METADATA, WorkerMetadata, "")
        self._pods = self._collection(api, PODS, Pod, DISCOVERED) if by_container else None
        self._slices = None if by_container else self._collection(api, ENDPOINT_SLICES, EndpointSlice, DISCOVERED)
        self._tasks: list[asyncio.Task[None]] = []

    def _collection(self, api: KubernetesApi, resource: Resource, kind: type[T], labels: str) -> Collection[T]:
        watch = ResourceWatch(api, resource, kind, namespace=self._config.namespace, labels=labels)
        return Collection(watch, self._changed.set)

    def start(self) -> None:
        followed = [each for each in (self._workers, self._pods, self._slices) if each]
        self._tasks = [asyncio.create_task(each.follow(), name="kubernetes discovery") for each in followed]
        self._tasks.append(asyncio.create_task(self._report(), name="kubernetes discovery"))

    async def close(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _report(self) -> None:
        await self._workers.synced.wait()
        readiness = self._pods or self._slices
        assert readiness
        await readiness.synced.wait()
        while True:
            self._changed.clear()
            self._on_records(live_records(self._ready(), self._all_published()))
            self.synced.set()
            await self._changed.wait()
            await asyncio.sleep(self._config.gather)

    def _ready(self) -> Ready:
        if self._pods:
            return ready_containers(self._pods.objects.values())
        assert self._slices
        return ready_pods(self._slices.objects.values())

    def _all_published(self) -> list[Published]:
        """Each object is decoded when it changes, not when others do."""
        found: dict[str, tuple[WorkerMetadata, Published]] = {}
        for name, worker in self._workers.objects.items():
            known = self._published.get(name)
            if known and known[0] is worker:
                found[name] = known
                continue
            try:
                found[name] = (worker, published(worker))
            except ValueError as error:
                log.warning("%s '%s': %s", WORKER_METADATA, name, error)
                if known:
                    found[name] = (worker, known[1])
        self._published = found
        return [each for _, each in found.values()]
