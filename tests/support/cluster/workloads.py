"""Objects of a small deployment: a frontend and mockers of the bundled model, found through Kubernetes."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from support.cluster.places import ROOT

Object = dict[str, Any]

DISCOVERED = {
    "nvidia.com/dynamo-discovery-backend": "kubernetes",
    "nvidia.com/dynamo-discovery-enabled": "true",
}
SYSTEM_PORT = 9090
HTTP_PORT = 8000

RIGHTS = ROOT / "deploy/kubernetes/discovery.yaml"
DEFINITION = ROOT / "deploy/kubernetes/crds/dynamoworkermetadatas.yaml"


def python(*words: str) -> list[str]:
    """The product of this checkout, as an image would have it."""
    return [sys.executable, *words]


def plane_secret() -> Object:
    return {
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "dynamo-plane"}, "stringData": {"token": "secret"},
    }  # fmt: skip


def service(name: str, port: int) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": DISCOVERED},
        "spec": {"clusterIP": "None", "selector": {"app": name}, "ports": [{"name": "main", "port": port}]},
    }


def deployment(
    name: str, command: Sequence[str], port: int, *, replicas: int = 1, env: Mapping[str, str] = {}
) -> Object:
    """With only what is special to it: every address and port has the default that fits a pod."""
    field = {
        variable: {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for variable, path in (
            ("POD_NAME", "metadata.name"), ("POD_UID", "metadata.uid"), ("POD_NAMESPACE", "metadata.namespace"),
        )
    }  # fmt: skip
    token = {"secretKeyRef": {"name": "dynamo-plane", "key": "token"}}
    variables = [
        *field.values(),
        {"name": "DYN_PLANE_TOKEN", "valueFrom": token},
        {"name": "PYTHONPATH", "value": str(ROOT / "src")},
        *({"name": key, "value": value} for key, value in {"DYN_DISCOVERY_BACKEND": "kubernetes", **env}.items()),
    ]
    container = {
        "name": "main",
        "image": "dynamo",
        "command": list(command),
        "env": variables,
        "ports": [{"name": "main", "containerPort": port}],
        "startupProbe": {
            "httpGet": {"path": "/live", "port": port}, "periodSeconds": 1, "timeoutSeconds": 5,
            "failureThreshold": 600,
        },
        "readinessProbe": {"httpGet": {"path": "/health", "port": port}, "periodSeconds": 1, "timeoutSeconds": 5},
    }  # fmt: skip
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "serviceAccountName": "dynamo-worker",
                    "terminationGracePeriodSeconds": 60,
                    "containers": [container],
                },
            },
        },
    }


def frontend(**env: str) -> list[Object]:
    command = python("-m", "dynamo.frontend", "--router-mode", "kv")
    return [
        deployment("frontend", command, HTTP_PORT, env={"DYNAMO_PORT": str(HTTP_PORT), **env}),
        service("frontend", HTTP_PORT),
    ]


def mockers(replicas: int, **env: str) -> list[Object]:
    command = python("-m", "dynamo.mocker", "--model-path", "tiny", "--model-name", "tiny")
    worker = deployment(
        "worker", command, SYSTEM_PORT, replicas=replicas, env={"DYN_SYSTEM_PORT": str(SYSTEM_PORT), **env}
    )
    return [worker, service("worker", SYSTEM_PORT)]


def documents(*objects: Object) -> str:
    return "\n---\n".join(json.dumps(each) for each in objects)
