"""This process's records in Kubernetes: one object, written whole, and written again while the process lives."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import random
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from dynamo.kubernetes.api import KubernetesApi
from dynamo.kubernetes.errors import ApiOutage, ApiRefusal, Conflict, KubernetesError, ObjectNotFound
from dynamo.kubernetes.pod import PodIdentity
from dynamo.kubernetes.resources import WORKER_METADATA
from dynamo.process.backoff import Backoff
from dynamo.runtime.discovery.base import DiscoveryError
from dynamo.runtime.discovery.kubernetes.config import KubernetesConfig
from dynamo.runtime.discovery.kubernetes.data import to_data
from dynamo.runtime.discovery.kubernetes.merge import CONTAINER_LABEL, WorkerMetadataMeta

log = logging.getLogger("dynamo.runtime.discovery.kubernetes")

MANAGER = "dynamo-worker"
POD_LABEL = "nvidia.com/dynamo-pod-uid"
PATIENCE = 2.0
"""Seconds a caller waits for its change to be stored; after that the task stores it in the background."""
FIRST_DELAY, LAST_DELAY = 0.1, 5.0
REFRESH = 60.0
"""Seconds between two writes of the same: somebody may have deleted the object, or restored an older store."""
MOST_PROCESSES = 64
"""The most processes of one container."""


class _NamedObject(Struct, frozen=True):
    metadata: WorkerMetadataMeta


class ObjectName:
    """The name of this process's object: the pod's (and container's), with a number for each further process there.

    A lock on a file of the container holds it, so that a process that follows a dead one replaces its object.
    """

    def __init__(self, config: KubernetesConfig, pod: PodIdentity) -> None:
        container = config.container
        self.base = pod.name if container in (None, "main") else f"{pod.name}-{container}"
        self._folder = config.locks
        self._fd: int | None = None
        self.number = 0

    def __str__(self) -> str:
        return self._of(self.number)

    def take(self) -> None:
        """The lowest name that no living process has."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for number in range(1, MOST_PROCESSES + 1):
            if (fd := self._lock(number)) is not None:
                self._fd, self.number = fd, number
                return
        raise DiscoveryError(f"more than {MOST_PROCESSES} processes of one container are in discovery")

    def release(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def dead(self, names: Iterator[str]) -> Iterator[str]:
        """Those of `names` that a process of this container had that is gone."""
        for name in names:
            found = re.fullmatch(re.escape(self.base) + r"(?:-(\d+))?", name)
            if found and (fd := self._lock(int(found[1] or 1))) is not None:
                try:
                    yield name
                finally:
                    os.close(fd)

    def _of(self, number: int) -> str:
        return self.base if number == 1 else f"{self.base}-{number}"

    def _lock(self, number: int) -> int | None:
        fd = os.open(self._folder / f"{self._of(number)}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            return None
        return fd


class PodRegistration:
    """The records this process wants in the cluster, and the task that keeps them there.

    Only that task writes, so that an older state never replaces a newer one.
    """

    def __init__(self, api: KubernetesApi, config: KubernetesConfig) -> None:
        self._api = api
        self._config = config
        self.own: dict[str, bytes] = {}
        self._name: ObjectName | None = None
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []
        self._wake = asyncio.Event()
        self._exists = False
        self._down = False
        self._task: asyncio.Task[None] | None = None

    async def put(self, key: str, value: bytes) -> None:
        await self._begin()
        self.own[key] = value
        await self._stored(key)

    async def delete(self, key: str) -> None:
        if self._task and self.own.pop(key, None) is not None:
            await self._stored(key)

    async def close(self) -> None:
        task, self._task = self._task, None
        if task:
            task.cancel()
            await asyncio.wait([task])
        self._release_callers()
        self.own.clear()
        if self._exists and not self._down:
            try:
                await self._remove(str(self._name))
            except KubernetesError as error:
                log.debug("the object is left to go with its pod: %s", error)
        if self._name:
            self._name.release()

    async def _begin(self) -> None:
        if self._task:
            return
        if (pod := self._config.pod) is None:
            raise DiscoveryError(
                "this process cannot be found by others through Kubernetes: it knows no pod that it runs in; in a pod,"
                " set POD_NAME and POD_UID by the downward API (metadata.name and metadata.uid)"
            )
        name = ObjectName(self._config, pod)
        try:
            name.take()
        except OSError as error:
            raise DiscoveryError(f"cannot lock a file in {self._config.locks}: {error.strerror or error}") from error
        self._name = name
        self._task = asyncio.create_task(self._run(name, pod), name="kubernetes registration")

    async def _run(self, name: ObjectName, pod: PodIdentity) -> None:
        backoff, refusal = Backoff(FIRST_DELAY, LAST_DELAY, jitter=random.random), ""
        swept = name.number != 1
        while True:
            self._wake.clear()
            waiting, self._waiting = self._waiting, []
            try:
                if self.own:
                    await self._write(str(name), pod)
                elif self._exists:
                    await self._remove(str(name))
                if not swept:
                    swept = True
                    await self._sweep(name, pod)
            except ApiRefusal as error:
                self._refuse(waiting, error)
                if str(error) != refusal:
                    refusal = str(error)
                    log.warning("this process cannot be found by others: %s; trying again", error)
            except KubernetesError as error:
                if not self._down:
                    log.warning("%s; this process will be registered when it answers", error)
                self._down = True
                _finish(waiting)
            except Exception:
                # Without this task the process would vanish from discovery while it serves.
                log.exception("keeping this process registered failed; trying again")
                _finish(waiting)
            else:
                _finish(waiting)
                self._down, refusal = False, ""
                backoff.reset()
                with suppress(TimeoutError):
                    async with asyncio.timeout(REFRESH * random.uniform(0.75, 1.25)):
                        await self._wake.wait()
                continue
            await asyncio.sleep(backoff.pause())

    async def _write(self, name: str, pod: PodIdentity) -> None:
        labels = {POD_LABEL: pod.uid}
        if self._config.container:
            labels[CONTAINER_LABEL] = self._config.container
        owner = {
            "apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid, "controller": True,
            "blockOwnerDeletion": False,
        }  # fmt: skip
        body: dict[str, Any] = {
            "metadata": {"labels": labels, "ownerReferences": [owner]},
            "spec": {"data": to_data(self.own)},
        }
        try:
            await self._api.apply(WORKER_METADATA, name, body, manager=MANAGER, namespace=self._config.namespace)
        except ApiOutage:
            self._exists = True  # perhaps
            raise
        self._exists = True

    async def _remove(self, name: str) -> None:
        with suppress(ObjectNotFound, Conflict):
            await self._api.delete(WORKER_METADATA, name, namespace=self._config.namespace)
        self._exists = False

    async def _sweep(self, name: ObjectName, pod: PodIdentity) -> None:
        """Delete what processes left that ran in this container before it was started again."""
        listing = await self._api.list(
            WORKER_METADATA, namespace=self._config.namespace, labels=f"{POD_LABEL}={pod.uid}"
        )
        names = [msgspec.json.decode(raw, type=_NamedObject).metadata.name for raw in listing.items]
        for dead in name.dead(iter(names)):
            await self._remove(dead)

    def _refuse(self, waiting: list[tuple[str, asyncio.Future[None]]], error: ApiRefusal) -> None:
        for key, caller in waiting:
            if not caller.done():
                self.own.pop(key, None)
                caller.set_exception(DiscoveryError(str(error)))

    async def _stored(self, key: str) -> None:
        self._wake.set()
        if self._down:
            return
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((key, stored))
        await asyncio.wait([stored], timeout=PATIENCE)
        if stored.done():
            stored.result()
        else:
            stored.cancel()

    def _release_callers(self) -> None:
        waiting, self._waiting = self._waiting, []
        _finish(waiting)


def _finish(waiting: list[tuple[str, asyncio.Future[None]]]) -> None:
    for _, caller in waiting:
        if not caller.done():
            caller.set_result(None)
