"""Workers as pods that an operator makes: the number is in a DynamoGraphDeployment, or in a scaling adapter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from dynamo.kubernetes.api import KubernetesApi
from dynamo.kubernetes.errors import ApiRefusal, KubernetesError
from dynamo.kubernetes.messages import Replicas
from dynamo.kubernetes.resources import GRAPH_ADAPTERS, Resource
from dynamo.planner.act.workloads import ObjectMetadata, ReplicaCounts, checked_name, pool_order, raise_actor_errors
from dynamo.planner.config import Role
from dynamo.planner.parts import ActorError, PoolOrder

_GRAPHS = Resource("nvidia.com", "v1alpha1", "dynamographdeployments", "DynamoGraphDeployment")
"""In the version that all operators serve; ours answers with components where they were written."""


class ScaledService(Struct, frozen=True):
    """What is read of a service (v1alpha1) or a component (v1beta1)."""

    replicas: Replicas = 1
    name: str = ""
    type: str = ""
    subComponentType: str = ""
    scalingAdapter: dict[str, Any] | None = None

    @property
    def has_adapter(self) -> bool:
        """In v1alpha1 it is switched on; in v1beta1 it is there."""
        return self.scalingAdapter is not None and self.scalingAdapter.get("enabled", bool(self.name)) is True

    def serves(self, role: Role) -> bool:
        return role in (self.subComponentType, self.type) or (role == "decode" and self.type == "worker")


class ScaledGraphSpec(Struct, frozen=True):
    services: dict[str, ScaledService] = {}
    components: list[dict[str, Any]] = []


class ScaledGraphStatus(Struct, frozen=True):
    services: dict[str, ReplicaCounts] = {}
    components: dict[str, ReplicaCounts] = {}


class ScaledGraph(Struct, frozen=True):
    """The fields that are read of a DynamoGraphDeployment."""

    metadata: ObjectMetadata
    spec: ScaledGraphSpec
    status: ScaledGraphStatus = ScaledGraphStatus()

    def services(self) -> dict[str, ScaledService]:
        try:
            found = msgspec.convert(self.spec.components, list[ScaledService])
        except msgspec.ValidationError as error:
            raise ActorError(f"{_GRAPHS}: spec.components: {error}") from error
        return {**self.spec.services, **{each.name: each for each in found}}


class GraphActor:
    """Components of one DynamoGraphDeployment; its operator makes the pods."""

    def __init__(self, api: KubernetesApi, name: str, components: Mapping[Role, str]) -> None:
        self._api = api
        self._name = checked_name(name, "graph_deployment")
        self._components = components
        self._graph: ScaledGraph | None = None
        self._names: dict[Role, str] = {}
        self._adapted: dict[Role, int] = {}

    async def read(self) -> Mapping[Role, PoolOrder]:
        with raise_actor_errors():
            graph = await self._api.get(_GRAPHS, self._name, ScaledGraph)
            services = graph.services()
            names = {role: self._find(services, role) for role in self._components}
            adapted = {
                role: (await self._api.read_scale(GRAPH_ADAPTERS, self._adapter(name))).spec.replicas
                for role, name in names.items() if services[name].has_adapter
            }  # fmt: skip
        self._graph, self._names, self._adapted = graph, names, adapted
        orders: dict[Role, PoolOrder] = {}
        for role, name in names.items():
            counts = {**graph.status.services, **graph.status.components}.get(name, ReplicaCounts())
            ready = counts.readyReplicas if counts.availableReplicas is None else counts.availableReplicas
            orders[role] = pool_order(adapted.get(role, services[name].replicas), ready)
        return orders

    async def scale(self, workers: Mapping[Role, int]) -> None:
        """By the adapters of those that have one; the others in one change of the graph."""
        failed: dict[Role, KubernetesError] = {}
        for role in workers.keys() & self._adapted.keys():
            if workers[role] != self._adapted[role]:
                try:
                    await self._api.scale(GRAPH_ADAPTERS, self._adapter(self._names[role]), workers[role])
                except KubernetesError as error:
                    failed[role] = error
        rest = {role: count for role, count in workers.items() if role not in self._adapted}
        if rest:
            try:
                await self._api.patch(_GRAPHS, self._name, self._change(rest))
            except KubernetesError as error:
                failed |= dict.fromkeys(rest, error)
        if failed:
            unchanged = frozenset(role for role, error in failed.items() if isinstance(error, ApiRefusal))
            told = "; ".join(dict.fromkeys(map(str, failed.values())))
            raise ActorError(told, unchanged=unchanged) from next(iter(failed.values()))

    def _change(self, workers: Mapping[Role, int]) -> dict[str, Any]:
        """A merge patch, refused where the graph is no longer the one that was read: it replaces lists whole."""
        assert self._graph
        counts = {self._names[role]: count for role, count in workers.items()}
        spec: dict[str, Any] = {}
        if services := {
            name: {"replicas": count} for name, count in counts.items() if name in self._graph.spec.services
        }:
            spec["services"] = services
        if len(services) < len(counts):
            spec["components"] = [
                {**each, "replicas": counts[each["name"]]} if each["name"] in counts else each
                for each in self._graph.spec.components
            ]
        return {"metadata": {"resourceVersion": self._graph.metadata.resourceVersion}, "spec": spec}

    def _adapter(self, component: str) -> str:
        return f"{self._name}-{component.lower()}"

    def _find(self, services: Mapping[str, ScaledService], role: Role) -> str:
        """The one with the name of the configuration, else the only one of this kind."""
        named = [self._components[role]] if self._components[role] in services else []
        found = named or [name for name, service in services.items() if service.serves(role)]
        if len(found) != 1:
            raise ActorError(
                f"{_GRAPHS} '{self._name}': has no component '{self._components[role]}', and {len(found)} for the role"
                f" '{role}'; it has {', '.join(services) or 'none'}"
            )
        return found[0]
