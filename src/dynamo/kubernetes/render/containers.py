"""The container of a component: what its type adds, under what its author wrote."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from dynamo.kubernetes.graph import GraphComponent
from dynamo.kubernetes.graph.graph import MAIN
from dynamo.kubernetes.render.target import RenderTarget

HTTP_PORT, SYSTEM_PORT, PLANNER_PORT = 8000, 9090, 9085
EPP_PORT, EPP_HEALTH_PORT = 9002, 9003
LEADER_PORT = 29500
LEAVE_SECONDS = 5
"""After a pod's deletion began, Services still send requests to it for a moment."""
_SPARE_SECONDS = 5
WAIT_SECONDS = 30
"""A request waits this long for a model that has no worker at the moment."""
_SHELL = re.compile(r"(-m\s+dynamo\.(?:vllm|sglang))\b")
_OWN_NODES = ("--num-nodes", "--nnodes", "--node-rank", "--dist-init-addr")

Object = dict[str, Any]


def main_container(target: RenderTarget, component: GraphComponent, grace: int) -> Object:
    given = dict(component.main)
    found = {"name": MAIN, "image": given["image"], **given}
    _fill_command(found, component)
    found["env"] = variables(target, component, given.get("env"), grace)
    if ports := _ports(component):
        found["ports"] = _merged(ports, given.get("ports"))
    # Where somebody reads why a container ended, without a right to read logs.
    found.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    for key, probe in _probes(component).items():
        found.setdefault(key, probe)
    if component.type == "frontend":
        stop = {"preStop": {"exec": {"command": ["sleep", str(LEAVE_SECONDS)]}}}
        found["lifecycle"] = {**stop, **(given.get("lifecycle") or {})}
    return found


def sidecar_frontend(target: RenderTarget, container: Mapping[str, Any], grace: int) -> Object:
    """A frontend beside a worker in its pod."""
    found = dict(container)
    if not found.get("command"):
        found["command"] = ["python3", "-m", "dynamo.frontend"]
    added = _frontend_variables(target, grace)
    found["env"] = _merged([*_pod_variables(target), *added], container.get("env"))
    return found


def variables(
    target: RenderTarget, component: GraphComponent, own: Iterable[Object] | None, grace: int
) -> list[Object]:
    """What the type needs, then the graph's, then the component's: a later one wins."""
    added = [
        *_pod_variables(target),
        _variable("DYN_NAMESPACE", target.dynamo_namespace(component)),
        _variable("DYN_PARENT_DGD_K8S_NAME", target.graph.name),
        _variable("DYN_PARENT_DGD_K8S_NAMESPACE", target.namespace),
    ]
    left = str(max(0, grace - _SPARE_SECONDS))
    if component.type == "frontend":
        added += _frontend_variables(target, grace)
    elif component.is_worker:
        added += [
            _variable("DYN_COMPONENT", component.type),
            _variable("DYN_SYSTEM_PORT", str(SYSTEM_PORT)),
            _variable("DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT", left),
        ]
    elif component.type == "planner":
        added += [_variable("PLANNER_PROMETHEUS_PORT", str(PLANNER_PORT))]
    elif component.type == "epp" and target.namespace_prefix:
        added += [_variable("DYN_NAMESPACE_PREFIX", target.namespace_prefix)]
    if component.nodes > 1:
        added.append(_field("NODE_RANK", "metadata.labels['apps.kubernetes.io/pod-index']"))
    return _merged(_merged(added, target.graph.spec.env), own)


def _pod_variables(target: RenderTarget) -> list[Object]:
    secret = {"name": target.token_secret, "key": "token"}
    return [
        _field("POD_NAME", "metadata.name"),
        _field("POD_UID", "metadata.uid"),
        _field("POD_NAMESPACE", "metadata.namespace"),
        _variable("DYN_DISCOVERY_BACKEND", "kubernetes"),
        {"name": "DYN_PLANE_TOKEN", "valueFrom": {"secretKeyRef": secret}},
    ]


def _frontend_variables(target: RenderTarget, grace: int) -> list[Object]:
    found = [
        _variable("DYNAMO_PORT", str(HTTP_PORT)),
        _variable("DYN_HTTP_GRACEFUL_SHUTDOWN_TIMEOUT_SECS", str(max(0, grace - LEAVE_SECONDS - _SPARE_SECONDS))),
    ]
    # Workers of another card are loaded when the last of the old ones left.
    found.append(_variable("DYN_MODEL_WAIT_SECS", str(WAIT_SECONDS)))
    if prefix := target.namespace_prefix:
        found.append(_variable("DYN_NAMESPACE_PREFIX", prefix))
    return found


def _fill_command(container: Object, component: GraphComponent) -> None:
    if not container.get("command"):
        if component.type == "frontend":
            container["command"] = ["python3", "-m", "dynamo.frontend"]
        elif component.type == "planner":
            container["command"] = ["python3", "-m", "dynamo.planner"]
        elif component.type == "epp":
            container["command"] = ["python3", "-m", "dynamo.epp"]
        elif container.get("args") and component.is_worker:
            container["command"] = ["/bin/sh", "-c"]


def with_nodes(container: Object, leader: str, nodes: int) -> Object:
    """The flags by which the engines of several pods find each other, unless its author wrote them."""
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    if any(flag in word for flag in _OWN_NODES for word in words):
        return container
    flags = ["--num-nodes", str(nodes), "--node-rank", "$(NODE_RANK)", "--leader-addr", f"{leader}:{LEADER_PORT}"]
    found = dict(container)
    for key in ("command", "args"):
        given = list(container.get(key) or ())
        for at, word in enumerate(given):
            if word in ("dynamo.vllm", "dynamo.sglang"):
                return {**found, key: [*given[: at + 1], *flags, *given[at + 1 :]]}
            if _SHELL.search(word):
                given[at] = _SHELL.sub(lambda match: f"{match[1]} {' '.join(flags)}", word, count=1)
                return {**found, key: given}
    return found


def takes_nodes(component: GraphComponent) -> bool:
    """Whether `with_nodes` knows the command, or its author wrote the flags."""
    given = dict(component.main)
    return with_nodes(given, "leader", 2) != given or any(
        flag in word for flag in _OWN_NODES for word in [*(given.get("command") or ()), *(given.get("args") or ())]
    )


def _ports(component: GraphComponent) -> list[Object]:
    ports = {
        "frontend": {"http": HTTP_PORT}, "planner": {"metrics": PLANNER_PORT},
        "epp": {"grpc": EPP_PORT, "grpc-health": EPP_HEALTH_PORT},
    }.get(component.type, {"system": SYSTEM_PORT} if component.is_worker else {})  # fmt: skip
    return [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in ports.items()]


def _probes(component: GraphComponent) -> dict[str, Object]:
    """A model may take two hours to load: until its startup probe holds, the others do not run."""
    if component.type == "epp":
        grpc = {"grpc": {"port": EPP_HEALTH_PORT, "service": "inference-extension"}, "periodSeconds": 5}
        return {"readinessProbe": grpc, "livenessProbe": {**grpc, "periodSeconds": 10}}
    if component.type != "frontend" and not component.is_worker:
        return {}
    port = "http" if component.type == "frontend" else "system"
    live, ready = ({"httpGet": {"path": path, "port": port}, "timeoutSeconds": 5} for path in ("/live", "/health"))
    start = 720 if component.is_worker else 60
    return {
        "startupProbe": {**live, "periodSeconds": 2, "failureThreshold": start * 5},
        "livenessProbe": {**live, "periodSeconds": 10, "failureThreshold": 3},
        "readinessProbe": {**ready, "periodSeconds": 3, "failureThreshold": 2},
    }


def _variable(name: str, value: str) -> Object:
    return {"name": name, "value": value}


def _field(name: str, path: str) -> Object:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _merged(first: Iterable[Object], second: Iterable[Object] | None) -> list[Object]:
    """By name; those of `second` win, and keep their order."""
    second = list(second or ())
    names = {each.get("name") for each in second}
    return [*(each for each in first if each.get("name") not in names), *second]
