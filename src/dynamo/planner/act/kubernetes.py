"""Workers as pods: the number is that of a Deployment or StatefulSet, or of a service of a DynamoGraphDeployment."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

from dynamo.kubernetes.api import KubernetesApi
from dynamo.kubernetes.errors import ApiRefusal, KubernetesError
from dynamo.kubernetes.messages import Replicas
from dynamo.kubernetes.resources import DEPLOYMENTS, STATEFUL_SETS, Resource
from dynamo.planner.config import PlannerConfig, PlannerConfigError, Role
from dynamo.planner.parts import ActorError, PoolOrder

_KINDS = {"deployment": DEPLOYMENTS, "statefulset": STATEFUL_SETS}
_GRAPHS = Resource("nvidia.com", "v1alpha1", "dynamographdeployments", "DynamoGraphDeployment")
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
        with _raise_actor_errors():
            self._read = {role: await self._api.get(*named, Workload) for role, named in self._workloads.items()}
        return {role: _order(read.spec.replicas, read.status.readyReplicas or 0) for role, read in self._read.items()}

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


class ScalingAdapterSpec(Struct, frozen=True):
    enabled: bool = False


class GraphService(Struct, frozen=True):
    replicas: Replicas = 1
    subComponentType: str = ""
    scalingAdapter: ScalingAdapterSpec | None = None


class ScaledGraphSpec(Struct, frozen=True):
    services: dict[str, GraphService] = {}


class ScaledGraphStatus(Struct, frozen=True):
    services: dict[str, ReplicaCounts] = {}


class ScaledGraph(Struct, frozen=True):
    """The fields that are read of ai-dynamo's DynamoGraphDeployment."""

    metadata: ObjectMetadata
    spec: ScaledGraphSpec
    status: ScaledGraphStatus = ScaledGraphStatus()


class GraphActor:
    """Services of one DynamoGraphDeployment; its operator makes the pods."""

    def __init__(self, api: KubernetesApi, name: str, components: Mapping[Role, str]) -> None:
        self._api = api
        self._name = _checked(name, "graph_deployment")
        self._components = components
        self._metadata: ObjectMetadata | None = None
        self._services: dict[Role, str] = {}

    async def read(self) -> Mapping[Role, PoolOrder]:
        with _raise_actor_errors():
            graph = await self._api.get(_GRAPHS, self._name, ScaledGraph)
        services = {role: self._service(graph, role) for role in self._components}
        self._metadata, self._services = graph.metadata, services
        orders: dict[Role, PoolOrder] = {}
        for role, service in services.items():
            counts = graph.status.services.get(service, ReplicaCounts())
            ready = counts.readyReplicas if counts.availableReplicas is None else counts.availableReplicas
            orders[role] = _order(graph.spec.services[service].replicas, ready)
        return orders

    async def scale(self, workers: Mapping[Role, int]) -> None:
        assert self._metadata
        services = {self._services[role]: {"replicas": count} for role, count in workers.items()}
        try:
            metadata = {"resourceVersion": self._metadata.resourceVersion}
            await self._api.patch(_GRAPHS, self._name, {"metadata": metadata, "spec": {"services": services}})
        except KubernetesError as error:
            unchanged = frozenset(workers) if isinstance(error, ApiRefusal) else frozenset()
            raise ActorError(str(error), unchanged=unchanged) from error

    def _service(self, graph: ScaledGraph, role: Role) -> str:
        """The service with the name of the configuration, else the only one of this kind."""
        services = graph.spec.services
        named = [self._components[role]] if self._components[role] in services else []
        found = named or [name for name, service in services.items() if service.subComponentType == role]
        if len(found) != 1:
            raise ActorError(
                f"{_GRAPHS} '{self._name}': has no service '{self._components[role]}', and {len(found)} services with"
                f" subComponentType '{role}'; it has {', '.join(services) or 'none'}"
            )
        adapter = services[found[0]].scalingAdapter
        if adapter and adapter.enabled:
            raise ActorError(
                f"{_GRAPHS} '{self._name}': the replicas of '{found[0]}' belong to its scalingAdapter; disable that"
            )
        return found[0]


@contextlib.contextmanager
def _raise_actor_errors() -> Iterator[None]:
    try:
        yield
    except KubernetesError as error:
        raise ActorError(str(error)) from error


def kubernetes_actor(api: KubernetesApi, config: PlannerConfig) -> WorkloadActor | GraphActor:
    """A component is the name of a service if there is a graph deployment, else of a Deployment, or KIND/NAME."""
    _checked(api.namespace, "kubernetes_namespace")
    components = {role: config.component(role) for role in config.roles}
    if len(set(components.values())) != len(components):
        raise PlannerConfigError("prefill_component and decode_component must not be the same")
    if config.graph_deployment and not any("/" in component for component in components.values()):
        return GraphActor(api, config.graph_deployment, components)
    return WorkloadActor(api, {role: _workload(name, f"{role}_component") for role, name in components.items()})


def _workload(component: str, key: str) -> WorkloadName:
    kind, slash, name = component.rpartition("/")
    kind = kind.lower() if slash else "deployment"
    if kind not in _KINDS:
        raise PlannerConfigError(f"{key}: '{component}' is neither NAME nor deployment/NAME nor statefulset/NAME")
    return WorkloadName(_KINDS[kind], _checked(name, key))


def _checked(name: str, key: str) -> str:
    if not _NAME.fullmatch(name):
        raise PlannerConfigError(f"{key}: '{name}' is no name of Kubernetes: lower-case letters, digits, '-' and '.'")
    return name


def _order(wanted: int, ready: int | None) -> PoolOrder:
    return PoolOrder(wanted=wanted, starting=None if ready is None else max(0, wanted - ready))
