"""The operator as a pod with its own rights, and graphs of the bundled model."""

from __future__ import annotations

import sys
from typing import Any

from dynamo.kubernetes.render.rights import operator_rules
from support.cluster.places import ROOT
from support.cluster.workloads import python

Object = dict[str, Any]

DEFINITIONS = {
    name: ROOT / "deploy/kubernetes/crds" / f"{name}.yaml"
    for name in ("dynamographdeployments", "dynamographdeploymentscalingadapters", "dynamomodels")
}
PATHS = [{"name": "PYTHONPATH", "value": str(ROOT / "src")}]


def operator(replicas: int = 1) -> list[Object]:
    """With a role of its namespace only."""
    name = {"name": "dynamo-operator"}
    group = "rbac.authorization.k8s.io"
    labels = {"app": "dynamo-operator"}
    container = {
        "name": "main",
        "image": "dynamo",
        "command": python("-m", "dynamo.operator"),
        "env": [
            *PATHS,
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
        "readinessProbe": {"httpGet": {"path": "/health", "port": 8081}, "periodSeconds": 1, "timeoutSeconds": 5},
    }
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": name},
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": name, "rules": operator_rules()},
        {
            "apiVersion": f"{group}/v1", "kind": "RoleBinding", "metadata": name,
            "roleRef": {"apiGroup": group, "kind": "Role", **name}, "subjects": [{"kind": "ServiceAccount", **name}],
        },
        {
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": name,
            "spec": {
                "replicas": replicas, "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"serviceAccountName": "dynamo-operator", "containers": [container]},
                },
            },
        },
    ]  # fmt: skip


def component(name: str, kind: str, *words: str, replicas: int = 1, **env: str) -> Object:
    """One that runs this checkout, with probes that look every second."""
    port = "http" if kind == "frontend" else "system"

    def probe(path: str) -> Object:
        return {"httpGet": {"path": path, "port": port}, "periodSeconds": 1, "timeoutSeconds": 5}

    container = {
        "name": "main",
        "image": "dynamo",
        "command": [sys.executable, *words],
        "env": [*PATHS, *({"name": key, "value": value} for key, value in env.items())],
        "startupProbe": {**probe("/live"), "failureThreshold": 600},
        "readinessProbe": probe("/health"),
    }
    return {
        "name": name, "type": kind, "replicas": replicas, "podTemplate": {"spec": {"containers": [container]}},
    }  # fmt: skip


def graph(name: str, *components: Object, **spec: Any) -> Object:
    return {
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": name},
        "spec": {"components": list(components), **spec},
    }


def aggregated(name: str = "aggregated", workers: int = 1, **env: str) -> Object:
    """A frontend and workers of the bundled model, whose greedy answers are always the same."""
    return graph(
        name,
        component("Frontend", "frontend", "-m", "dynamo.frontend"),
        component("worker", "worker", "-m", "dynamo.llama_cpp", "--model", "tiny", replicas=workers, **env),
    )
