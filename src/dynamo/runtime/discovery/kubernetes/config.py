"""Where the cluster is, which pod this is, and how its readiness is seen."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from msgspec import Struct

from dynamo.kubernetes.access import find_access
from dynamo.kubernetes.cluster import ClusterAccess
from dynamo.kubernetes.pod import PodIdentity, find_pod

ReadinessOf = Literal["pod", "container"]


class KubernetesConfig(Struct, frozen=True, kw_only=True):
    access: ClusterAccess
    namespace: str
    """Of the objects; not Dynamo's."""
    pod: PodIdentity | None = None
    """None: this process follows the workers of a cluster from outside, and cannot be found itself."""
    container: str | None = None
    """Set where each container of a pod has an object of its own, and counts when it is ready itself."""
    locks: Path
    """A folder of this container: processes beside each other take objects of different names."""
    gather: float = 0.5
    """Seconds that changes are collected before they are reported."""

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Self:
        """Raises ClusterAccessError where no cluster can be reached, and ValueError for a variable that is wrong."""
        access = find_access(environ)
        pod = find_pod(environ)
        return cls(
            access=access,
            namespace=environ.get("POD_NAMESPACE") or access.namespace,
            pod=pod,
            container=_container(environ),
            locks=Path(tempfile.gettempdir()) / f"dynamo-pod-{os.geteuid()}",
        )

    @property
    def host(self) -> str:
        """Of the API server: the way there leads through the network that pods share."""
        return urlsplit(self.access.server).hostname or ""

    @property
    def readiness_of(self) -> ReadinessOf:
        return "container" if self.container else "pod"


def _container(environ: Mapping[str, str]) -> str | None:
    mode = environ.get("DYN_KUBE_DISCOVERY_MODE", "").strip().lower() or "pod"
    if mode not in ("pod", "container"):
        raise ValueError(f"DYN_KUBE_DISCOVERY_MODE must be pod or container, not '{mode}'")
    if mode == "pod":
        return None
    if not (name := environ.get("CONTAINER_NAME", "").strip()):
        raise ValueError("DYN_KUBE_DISCOVERY_MODE=container needs CONTAINER_NAME, the name of this container")
    return name
