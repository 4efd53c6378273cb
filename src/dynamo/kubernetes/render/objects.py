"""All objects of a graph, in the order in which they are applied."""

from __future__ import annotations

from typing import Any

from dynamo.kubernetes.graph import GraphComponent
from dynamo.kubernetes.render.containers import (
    EPP_PORT,
    HTTP_PORT,
    LEAVE_SECONDS,
    PLANNER_PORT,
    SYSTEM_PORT,
    with_nodes,
)
from dynamo.kubernetes.render.pods import pod_template, selector
from dynamo.kubernetes.render.rights import rights
from dynamo.kubernetes.render.target import LABELS, MODEL_LABEL, RenderTarget, model_hash

_PORTS = {"frontend": ("http", HTTP_PORT), "epp": ("grpc", EPP_PORT), "planner": ("metrics", PLANNER_PORT)}
_DISCOVERED = {f"{LABELS}dynamo-discovery-backend": "kubernetes", f"{LABELS}dynamo-discovery-enabled": "true"}
_SURGE, _UNAVAILABLE = (f"{LABELS}deployment-rolling-update-{each}" for each in ("max-surge", "max-unavailable"))
_STRATEGY = f"{LABELS}deployment-strategy"

Object = dict[str, Any]


def render(target: RenderTarget) -> list[Object]:
    """Without the Secret of the planes, which is no function of the graph."""
    components = target.graph.spec.components
    return [
        *rights(target),
        *(_claim(target, each) for each in target.graph.spec.claims),
        *(each for component in components for each in component_objects(target, component)),
        *_model_services(target),
    ]


def component_objects(target: RenderTarget, component: GraphComponent) -> list[Object]:
    """The Service, the workload, and a budget where more than one pod is wanted."""
    workloads = _stateful_sets(target, component) if component.nodes > 1 else [_deployment(target, component)]
    found = [_service(target, component)] if component.type else []
    found += workloads
    if target.count(component) > 1 and component.nodes == 1:
        found.append(_budget(target, component))
    return found


def plane_secret(target: RenderTarget, token: str) -> Object:
    """By which the processes of a graph know each other."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": target.metadata(target.token_secret, target.labels()),
        "type": "Opaque",
        "stringData": {"token": token},
    }


def _deployment(target: RenderTarget, component: GraphComponent) -> Object:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": target.metadata(target.name(component), target.labels(component)),
        "spec": {
            "replicas": target.count(component),
            # Frontends learn of a worker after its pod is ready: none may go in its favour before they have.
            "minReadySeconds": LEAVE_SECONDS if component.is_worker else 0,
            "selector": {"matchLabels": selector(target, component)},
            "strategy": _strategy(component),
            "template": pod_template(target, component),
        },
    }


def _strategy(component: GraphComponent) -> Object:
    """A new pod comes before an old one goes, unless the component says otherwise."""
    annotations = component.pod_template.metadata.annotations or {}
    if annotations.get(_STRATEGY) == "Recreate" or component.type == "planner":
        return {"type": "Recreate"}  # two planners would take each other's changes for manual ones
    rolling = {"maxSurge": annotations.get(_SURGE, "25%"), "maxUnavailable": annotations.get(_UNAVAILABLE, "0")}
    numbers = {key: int(value) if value.isdigit() else value for key, value in rolling.items()}
    return {"type": "RollingUpdate", "rollingUpdate": numbers}


def _stateful_sets(target: RenderTarget, component: GraphComponent) -> list[Object]:
    """One per replica: its first pod leads, and the index of each is its rank."""
    name = target.name(component)
    found = []
    for number in range(target.count(component)):
        own = f"{name}-{number}"
        template = pod_template(target, component)
        leader = f"{own}-0.{name}.{target.namespace}.svc"
        template["spec"]["containers"] = [
            with_nodes(each, leader, component.nodes) if each["name"] == "main" else each
            for each in template["spec"]["containers"]
        ]
        labels = {**template["metadata"]["labels"], f"{LABELS}replica": str(number)}
        template["metadata"] = {**template["metadata"], "labels": labels}
        found.append({
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": target.metadata(own, target.labels(component)),
            "spec": {
                "replicas": component.nodes,
                "serviceName": name,
                "podManagementPolicy": "Parallel",
                "selector": {"matchLabels": {**selector(target, component), f"{LABELS}replica": str(number)}},
                "template": template,
            },
        })  # fmt: skip
    return found


def _service(target: RenderTarget, component: GraphComponent) -> Object:
    port_name, port = _PORTS.get(component.type, ("system", SYSTEM_PORT))
    labels = {**target.labels(component), **_DISCOVERED}
    spec: Object = {
        "selector": selector(target, component),
        "ports": [{"name": port_name, "port": port, "targetPort": port_name, "protocol": "TCP"}],
    }
    if component.type == "epp":
        spec["ports"][0]["appProtocol"] = "http2"
    if component.is_worker:
        spec["clusterIP"] = "None"
        if component.nodes > 1:
            spec["publishNotReadyAddresses"] = True  # followers look for their leader before it is ready
    metadata = target.metadata(target.name(component), labels)
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def _budget(target: RenderTarget, component: GraphComponent) -> Object:
    """A drained node takes one pod of a component at a time."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": target.metadata(target.name(component), target.labels(component)),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": selector(target, component)}},
    }


def _claim(target: RenderTarget, claim: Object) -> Object:
    """Not the graph's: what it holds outlives the graph."""
    metadata = {"name": claim["name"], "namespace": target.namespace, "labels": target.labels()}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": claim["spec"]}


def _model_services(target: RenderTarget) -> list[Object]:
    """By which a DynamoModel finds the workers of its base model."""
    names = {each.model_ref.name for each in target.graph.spec.components if each.model_ref}
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": target.metadata(
                f"dynamo-model-{model_hash(name)}", {**target.labels(), MODEL_LABEL: model_hash(name)}
            ),
            "spec": {
                "clusterIP": "None",
                "selector": {MODEL_LABEL: model_hash(name)},
                "ports": [{"name": "system", "port": SYSTEM_PORT, "protocol": "TCP"}],
            },
        }
        for name in sorted(names)
    ]
