"""Workers as pods of Deployments and StatefulSets."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

from dynamo.kubernetes.api import KubernetesApi
from dynamo.kubernetes.errors import ApiRefusal, KubernetesError
from dynamo.kubernetes.messages import Replicas
from dynamo.kubernetes.resources import Resource
from dynamo.planner.config import PlannerConfigError, Role
from dynamo.planner.parts import ActorError, PoolOrder

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


class ObjectMetadata(Struct, frozen=True):
    resourceVersion: Annotated[str, Meta(min_length=1)]


class WorkloadName(NamedTuple):
    resource: Resource
    name: str


class WorkloadSpec(Struct, frozen=True):
    replicas: Replicas = 1


class ReplicaCounts(Struct, frozen=True):
    readyReplicas: Replicas | None = None
    availableReplicas: Replicas | None = None


class Workload(Struct, frozen=True):
    """The fields that are read of a Deployment or a StatefulSet."""

    metadata: ObjectMetadata
    spec: WorkloadSpec
    status: ReplicaCounts = ReplicaCounts()


class WorkloadActor:
    """One Deployment or StatefulSet per role, scaled by its `scale` subresource."""

    def __init__(self, api: KubernetesApi, workloads: Mapping[Role, WorkloadName]) -> None:
        self._api = api
        self._workloads = workloads
        self._read: dict[Role, Workload] = {}

    async def read(self) -> Mapping[Role, PoolOrder]:
        with raise_actor_errors():
            self._read = {role: await self._api.get(*named, Workload) for role, named in self._workloads.items()}
        return {
            role: pool_order(read.spec.replicas, read.status.readyReplicas or 0) for role, read in self._read.items()
        }

    async def scale(self, workers: Mapping[Role, int]) -> None:
        failed: dict[Role, KubernetesError] = {}
        for role, count in workers.items():
            read = self._read[role]
            if count != read.spec.replicas:
                try:
                    version = read.metadata.resourceVersion
                    await self._api.scale(*self._workloads[role], count, version=version)
                except KubernetesError as error:
                    failed[role] = error
        if failed:
            unchanged = frozenset(role for role, error in failed.items() if isinstance(error, ApiRefusal))
            raise ActorError("; ".join(map(str, failed.values())), unchanged=unchanged)


@contextlib.contextmanager
def raise_actor_errors() -> Iterator[None]:
    try:
        yield
    except KubernetesError as error:
        raise ActorError(str(error)) from error


def checked_name(name: str, key: str) -> str:
    if not _NAME.fullmatch(name):
        raise PlannerConfigError(f"{key}: '{name}' is no name of Kubernetes: lower-case letters, digits, '-' and '.'")
    return name


def pool_order(wanted: int, ready: int | None) -> PoolOrder:
    return PoolOrder(wanted=wanted, starting=None if ready is None else max(0, wanted - ready))
