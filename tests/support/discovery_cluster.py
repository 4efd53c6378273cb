"""Pods that find each other through a stand-in for the API server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dynamo.kubernetes.cluster import ClusterAccess
from dynamo.kubernetes.pod import PodIdentity
from dynamo.kubernetes.resources import ENDPOINT_SLICES, WORKER_METADATA
from dynamo.runtime.discovery.kubernetes import KubernetesConfig, KubernetesDiscovery
from dynamo.runtime.discovery.kubernetes.follower import DISCOVERED
from support.kube_server import KubeServer

SLICES, WORKERS = ENDPOINT_SLICES.plural, WORKER_METADATA.plural
LABEL, _, ENABLED = DISCOVERED.partition("=")


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
