"""Discovery in a Kubernetes cluster: an object per pod has its records, and its Service says whether it is ready."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Self, TypeVar

import msgspec

from dynamo.kubernetes.api import KubernetesApi, decoded
from dynamo.kubernetes.errors import Forbidden, KubernetesError, UnknownResource
from dynamo.kubernetes.messages import Listing
from dynamo.kubernetes.resources import ENDPOINT_SLICES, PODS, WORKER_METADATA
from dynamo.runtime.discovery.base import Change, DiscoveryError, check_key
from dynamo.runtime.discovery.kubernetes.config import KubernetesConfig
from dynamo.runtime.discovery.kubernetes.follower import DISCOVERED, ObjectFollower
from dynamo.runtime.discovery.kubernetes.merge import (
    EndpointSlice,
    Pod,
    Published,
    WorkerMetadata,
    live_records,
    published,
    ready_containers,
    ready_pods,
)
from dynamo.runtime.discovery.kubernetes.registration import PodRegistration
from dynamo.runtime.discovery.view import View

__all__ = ["KubernetesConfig", "KubernetesDiscovery"]

T = TypeVar("T")


class KubernetesDiscovery:
    """One process's view of a namespace. Its own records count at once, before its pod is ready."""

    def __init__(self, config: KubernetesConfig) -> None:
        self._config = config
        self._api = KubernetesApi(config.access, config.namespace)
        self._registration = PodRegistration(self._api, config)
        self._view = View()
        self._seen: Mapping[str, bytes] = {}
        self._follower: ObjectFollower | None = None
        self._watches = 0
        self._running = False
        self._closed = asyncio.Event()

    @property
    def api_calls(self) -> int:
        """Requests sent to the API server so far."""
        return self._api.calls

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Read once, so that missing rights and a missing definition are known before anything depends on them."""
        try:
            await self._read()
        except KubernetesError as error:
            await self._api.close()
            raise DiscoveryError(self._advice(error)) from error
        self._running = True

    async def put(self, key: str, value: bytes) -> None:
        check_key(key)
        self._refuse_unless_running()
        await self._registration.put(key, value)
        self._publish()

    async def delete(self, key: str) -> None:
        await self._registration.delete(key)
        self._publish()

    async def get_prefix(self, prefix: str) -> dict[str, bytes]:
        self._refuse_unless_running()
        try:
            records = {**await self._read(), **self._registration.own}
        except KubernetesError as error:
            raise DiscoveryError(self._advice(error)) from error
        return {key: value for key, value in records.items() if key.startswith(prefix)}

    async def watch(self, prefix: str) -> AsyncGenerator[Change, None]:
        self._refuse_unless_running()
        self._watches += 1
        try:
            if self._follower is None:
                self._follower = ObjectFollower(self._api, self._config, self._report)
                self._follower.start()
            await self._synced(self._follower)
            if self._closed.is_set():
                return
            async with aclosing(self._view.watch(prefix).changes()) as changes:
                async for change in changes:
                    yield change
        finally:
            self._watches -= 1
            if self._watches == 0 and (follower := self._follower):
                self._follower, self._seen = None, {}
                self._view.records.clear()
                await follower.close()

    async def close(self) -> None:
        self._running = False
        self._closed.set()
        self._view.end_watches()
        if self._follower:
            await self._follower.close()
        await self._registration.close()
        await self._api.close()

    async def _synced(self, follower: ObjectFollower) -> None:
        waits = [asyncio.create_task(follower.synced.wait()), asyncio.create_task(self._closed.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    def _report(self, records: Mapping[str, bytes]) -> None:
        self._seen = records
        self._publish()

    def _publish(self) -> None:
        if self._follower:
            self._view.replace({**self._seen, **self._registration.own})

    async def _read(self) -> dict[str, bytes]:
        """What counts now, from the server itself."""
        namespace = self._config.namespace
        workers = await self._api.list(WORKER_METADATA, namespace=namespace)
        if self._config.readiness_of == "container":
            pods = await self._api.list(PODS, namespace=namespace, labels=DISCOVERED)
            ready = ready_containers(_decode(pods, Pod))
        else:
            slices = await self._api.list(ENDPOINT_SLICES, namespace=namespace, labels=DISCOVERED)
            ready = ready_pods(_decode(slices, EndpointSlice))
        return live_records(ready, _readable(workers))

    def _advice(self, error: KubernetesError) -> str:
        if isinstance(error, UnknownResource):
            return f"{error}: install the CustomResourceDefinition of DynamoWorkerMetadata (docs/kubernetes.md)"
        if isinstance(error, Forbidden):
            return f"{error} (docs/kubernetes.md lists the rights of each component)"
        return f"cannot use discovery through Kubernetes: {error}"

    def _refuse_unless_running(self) -> None:
        if not self._running:
            raise DiscoveryError("this discovery is not started, or closed")


def _decode(listing: Listing, kind: type[T]) -> list[T]:
    return [decoded(raw, kind, "an object") for raw in listing.items]


def _readable(workers: Listing) -> list[Published]:
    found = []
    for raw in workers.items:
        try:
            found.append(published(msgspec.json.decode(raw, type=WorkerMetadata)))
        except (msgspec.MsgspecError, ValueError):
            continue  # a watch reports it
    return found
