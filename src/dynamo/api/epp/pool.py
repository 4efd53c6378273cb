"""Follows an InferencePool of the gateway API: the ready pods that it selects, at its ports."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from dynamo.api.epp.endpoints import endpoint_of
from dynamo.kubernetes.api import KubernetesApi
from dynamo.kubernetes.resources import PODS, Resource
from dynamo.kubernetes.watch import ResourceWatch
from dynamo.runtime.discovery.kubernetes.follower import Collection

log = logging.getLogger(__name__)

INFERENCE_POOLS = Resource("inference.networking.k8s.io", "v1", "inferencepools", "InferencePool")


class TargetPort(Struct, frozen=True):
    number: int


class PoolSelector(Struct, frozen=True, rename="camel"):
    match_labels: dict[str, str]


class PoolSpec(Struct, frozen=True, rename="camel"):
    selector: PoolSelector
    target_ports: list[TargetPort]


class InferencePool(Struct, frozen=True):
    spec: PoolSpec

    @property
    def labels(self) -> str:
        return ",".join(f"{key}={value}" for key, value in sorted(self.spec.selector.match_labels.items()))


class PodCondition(Struct, frozen=True):
    type: str
    status: str


class PooledPodStatus(Struct, frozen=True):
    pod_ip: str = msgspec.field(default="", name="podIP")
    conditions: Sequence[PodCondition] = ()


class PooledPodMetadata(Struct, frozen=True, rename="camel"):
    deletion_timestamp: str | None = None


class PooledPod(Struct, frozen=True):
    metadata: PooledPodMetadata = PooledPodMetadata()
    status: PooledPodStatus = PooledPodStatus()

    @property
    def ready(self) -> bool:
        is_ready = any(each.type == "Ready" and each.status == "True" for each in self.status.conditions)
        return is_ready and bool(self.status.pod_ip) and self.metadata.deletion_timestamp is None


class PoolFollower:
    """Reports the endpoints of a pool from `start` to `close`; while the API server is down the known ones stay."""

    def __init__(self, api: KubernetesApi, name: str, on_endpoints: Callable[[Sequence[str]], None]) -> None:
        self._api = api
        self._name = name
        self._on_endpoints = on_endpoints
        self._pool: InferencePool | None = None
        self._pods: Collection[PooledPod] | None = None
        self._following: dict[str, asyncio.Task[None]] = {}
        self._stopped: set[asyncio.Task[None]] = set()
        self._known = asyncio.Event()
        watch = ResourceWatch(api, INFERENCE_POOLS, InferencePool, fields=f"metadata.name={name}")
        self._pools = Collection(watch, self._pool_changed)

    async def start(self) -> None:
        """Return once the pool and its pods are known; a pool that is not there yet has none."""
        self._following["pool"] = asyncio.create_task(self._pools.follow())
        await self._known.wait()

    async def close(self) -> None:
        tasks = [*self._following.values(), *self._stopped]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _pool_changed(self) -> None:
        pool = self._pools.objects.get(self._name)
        if pool is None:
            if not self._known.is_set():
                log.warning("there is no InferencePool '%s' in %s: waiting for it", self._name, self._api.namespace)
            self._follow_pods(None)
            self._pool = None
            self._report([])
        elif self._pool is None or pool.labels != self._pool.labels:
            self._pool = pool
            self._follow_pods(pool.labels)
        else:
            self._pool = pool
            self._pods_changed()

    def _follow_pods(self, labels: str | None) -> None:
        if task := self._following.pop("pods", None):
            task.cancel()
            self._stopped.add(task)
            task.add_done_callback(self._stopped.discard)
        self._pods = None
        if labels is not None:
            self._pods = Collection(ResourceWatch(self._api, PODS, PooledPod, labels=labels), self._pods_changed)
            self._following["pods"] = asyncio.create_task(self._pods.follow())

    def _pods_changed(self) -> None:
        if self._pool is None or self._pods is None or not self._pods.synced.is_set():
            return
        ports = [port.number for port in self._pool.spec.target_ports]
        ready = [pod.status.pod_ip for _, pod in sorted(self._pods.objects.items()) if pod.ready]
        self._report([endpoint_of(address, port) for address in ready for port in ports])

    def _report(self, endpoints: list[str]) -> None:
        self._on_endpoints(endpoints)
        self._known.set()
