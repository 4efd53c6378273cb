"""Service accounts and roles: each kind of process has what it needs in its own namespace, and no more."""

from __future__ import annotations

from typing import Any

from dynamo.kubernetes.graph import GraphComponent
from dynamo.kubernetes.render.target import RenderTarget

Object = dict[str, Any]
_GROUP = "nvidia.com"
_READ = ["get", "list", "watch"]


def discovery_rules(*, writes: bool) -> list[Object]:
    return [
        _rule(_GROUP, ["dynamoworkermetadatas"], [*_READ, "create", "patch", "delete"] if writes else _READ),
        _rule("discovery.k8s.io", ["endpointslices"], ["list", "watch"]),
    ]


def planner_rules(graph: str) -> list[Object]:
    adapters = "dynamographdeploymentscalingadapters"
    return [
        {**_rule(_GROUP, ["dynamographdeployments"], ["get", "patch"]), "resourceNames": [graph]},
        _rule(_GROUP, [adapters, f"{adapters}/scale"], ["get", "patch"]),
        *discovery_rules(writes=False),
    ]


def operator_rules() -> list[Object]:
    """What the operator may do in each namespace that it serves."""
    kinds = [
        "dynamographdeployments", "dynamocomponentdeployments", "dynamographdeploymentscalingadapters", "dynamomodels",
        "dynamographdeploymentrequests",
    ]  # fmt: skip
    every = [*_READ, "create", "patch", "update", "delete"]
    return [
        _rule(_GROUP, kinds, every),
        _rule(_GROUP, [f"{kind}/{part}" for kind in kinds for part in ("status", "finalizers")], ["patch", "update"]),
        # A role may be given only by who has its rights.
        _rule(_GROUP, ["dynamoworkermetadatas"], [*_READ, "create", "patch", "delete"]),
        _rule(_GROUP, ["dynamographdeploymentscalingadapters/scale"], ["get", "patch"]),
        _rule("discovery.k8s.io", ["endpointslices"], _READ),
        _rule("inference.networking.k8s.io", ["inferencepools"], _READ),
        _rule("apps", ["deployments", "statefulsets"], every),
        _rule("", ["services", "serviceaccounts", "configmaps", "persistentvolumeclaims"], every),
        _rule("", ["secrets"], ["get", "create"]),
        _rule("", ["pods", "events"], _READ),
        _rule("", ["events"], ["create", "patch"]),
        _rule("rbac.authorization.k8s.io", ["roles", "rolebindings"], every),
        _rule("policy", ["poddisruptionbudgets"], every),
        _rule("coordination.k8s.io", ["leases"], ["get", "create", "patch", "update"]),
    ]


def account_name(target: RenderTarget, component: GraphComponent) -> str:
    """The service account of a component's pods."""
    role = _role(component)
    return f"{target.graph.name}-{role}" if role else ""


def rights(target: RenderTarget) -> list[Object]:
    """Accounts, roles and bindings of the types that the graph has."""
    found: dict[str, list[Object]] = {}
    for component in target.graph.spec.components:
        match _role(component):
            case "worker":
                found["worker"] = discovery_rules(writes=True)
            case "planner":
                found["planner"] = planner_rules(target.graph.name)
            case "epp":
                pods = [_rule("", ["pods"], _READ)]
                pools = [_rule("inference.networking.k8s.io", ["inferencepools"], _READ)]
                found["epp"] = [*discovery_rules(writes=False), *pods, *pools]
            case "frontend":
                # With the KV router, or with keys, frontends tell each other what they serve: each has an object.
                found["frontend"] = discovery_rules(writes=True)
    return [each for role, rules in found.items() for each in _account(target, f"{target.graph.name}-{role}", rules)]


def _role(component: GraphComponent) -> str:
    if component.is_worker:
        return "worker"
    return component.type or "worker"


def _account(target: RenderTarget, name: str, rules: list[Object]) -> list[Object]:
    metadata = target.metadata(name, target.labels())
    group = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata, "rules": rules},
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": target.namespace}],
        },
    ]


def _rule(group: str, resources: list[str], verbs: list[str]) -> Object:
    return {"apiGroups": [group], "resources": resources, "verbs": verbs}
