"""Pods that find each other through a stand-in for the API server, or through a real one."""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dynamo.kubernetes.access import find_access
from dynamo.kubernetes.cluster import ClusterAccess
from dynamo.kubernetes.pod import PodIdentity
from dynamo.kubernetes.resources import ENDPOINT_SLICES, WORKER_METADATA
from dynamo.runtime.discovery.kubernetes import KubernetesConfig, KubernetesDiscovery
from dynamo.runtime.discovery.kubernetes.follower import DISCOVERED
from support.cluster.places import BIN
from support.kube_server import KubeServer

SLICES, WORKERS = ENDPOINT_SLICES.plural, WORKER_METADATA.plural
LABEL, _, ENABLED = DISCOVERED.partition("=")
CONTRACT_NAMESPACE = "CONTRACT_NAMESPACE"
"""The variable that has the contract's tests use the cluster of KUBECONFIG, in this namespace."""


class DiscoveryCluster:
    """Each call of `discovery` is one more pod, ready from the start."""

    def __init__(self, server: KubeServer, folder: Path) -> None:
        self.server = server
        self._folder = folder
        self._ready: dict[str, bool] = {}

    def discovery(self, pod: str | None = None, *, gather: float = 0.01, **config: Any) -> KubernetesDiscovery:
        """In a pod of this name, else in a new one."""
        pod = pod or f"pod-{len(self._ready)}"
        if pod not in self._ready:
            self.set_ready(pod)
        return KubernetesDiscovery(
            KubernetesConfig(
                access=ClusterAccess(
                    server=self.server.url, origin="a test", namespace="serving", ca=self.server.ca, token=b"first"
                ),
                namespace="serving",
                pod=PodIdentity(pod, f"uid-of-{pod}"),
                locks=self._folder / "locks" / pod,
                gather=gather,
                **config,
            )
        )

    def set_ready(self, pod: str, ready: bool = True) -> None:
        self._ready[pod] = ready
        endpoints = [
            {
                "addresses": ["10.0.0.1"],
                "conditions": {"ready": ready},
                "targetRef": {"kind": "Pod", "name": name, "uid": f"uid-of-{name}"},
            }
            for name, ready in self._ready.items()
        ]
        metadata = {"name": "workers-abc", "labels": {LABEL: ENABLED}}
        self.server.put_object(SLICES, {"metadata": metadata, "endpoints": endpoints})

    def objects(self) -> list[str]:
        return sorted(name for plural, name in self.server.objects if plural == WORKERS)


class RealPods:
    """Pods that nobody runs: they own objects, and a slice of this test's own says that they are ready."""

    def __init__(self, environ: Mapping[str, str], folder: Path) -> None:
        self._environ = environ
        self._namespace = environ[CONTRACT_NAMESPACE]
        self._folder = folder
        self._pods: list[PodIdentity] = []

    def discovery(self) -> KubernetesDiscovery:
        name = f"pod-{secrets.token_hex(4)}"
        containers = [{"name": "main", "image": "none"}]
        made = self._apply("Pod", "v1", name, {"spec": {"schedulerName": "none", "containers": containers}})
        pod = PodIdentity(name, made["metadata"]["uid"])
        self._pods.append(pod)
        endpoints = [
            {
                "addresses": ["10.0.0.1"],
                "conditions": {"ready": True},
                "targetRef": {"kind": "Pod", "name": pod.name, "uid": pod.uid},
            }
            for pod in self._pods
        ]
        slice_name = f"contract-{self._pods[0].name}"
        content = {"addressType": "IPv4", "endpoints": endpoints, "ports": []}
        self._apply("EndpointSlice", "discovery.k8s.io/v1", slice_name, content)
        return KubernetesDiscovery(
            KubernetesConfig(
                access=find_access(self._environ), namespace=self._namespace, pod=pod,
                locks=self._folder / name, gather=0.05,
            )
        )  # fmt: skip

    def _apply(self, kind: str, version: str, name: str, content: dict[str, Any]) -> dict[str, Any]:
        thing = {"apiVersion": version, "kind": kind, "metadata": {"name": name, "labels": {LABEL: ENABLED}}, **content}
        done = subprocess.run(
            [str(BIN / "kubectl"), "apply", "-n", self._namespace, "-o", "json", "-f", "-"],
            input=json.dumps(thing), capture_output=True, text=True, check=True, env=dict(self._environ),
        )  # fmt: skip
        applied: dict[str, Any] = json.loads(done.stdout)
        return applied
