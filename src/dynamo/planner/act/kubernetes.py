"""Workers as pods: the number is that of a Deployment or StatefulSet, or of a component of a DynamoGraphDeployment."""

from __future__ import annotations

from dynamo.kubernetes.api import KubernetesApi
from dynamo.kubernetes.resources import DEPLOYMENTS, STATEFUL_SETS
from dynamo.planner.act.graphs import GraphActor
from dynamo.planner.act.workloads import WorkloadActor, WorkloadName, checked_name
from dynamo.planner.config import PlannerConfig, PlannerConfigError

_KINDS = {"deployment": DEPLOYMENTS, "statefulset": STATEFUL_SETS}


def kubernetes_actor(api: KubernetesApi, config: PlannerConfig) -> WorkloadActor | GraphActor:
    """A component is the name of a service if there is a graph deployment, else of a Deployment, or KIND/NAME."""
    checked_name(api.namespace, "kubernetes_namespace")
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
    return WorkloadName(_KINDS[kind], checked_name(name, key))
