"""Where the cluster is, which pod this is, and how its readiness is seen."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from msgspec import Struct

from dynamo.kubernetes.access import find_access
from dynamo.kubernetes.cluster import ClusterAccess
from dynamo.kubernetes.pod import PodIdentity, find_pod
from dynamo.settings import Setting, Settings

ReadinessOf = Literal["pod", "container"]


class KubernetesSettings(Settings, frozen=True, kw_only=True):
    # fmt: off
    readiness_of: Annotated[ReadinessOf, Setting(
        variables="DYN_KUBE_DISCOVERY_MODE",
        help="whose readiness counts: that of a pod behind a Service, or that of a `container`")] = "pod"
    container: Annotated[str | None, Setting(
        variables="CONTAINER_NAME", help="name of this container, where containers count for themselves")] = None
    namespace: Annotated[str | None, Setting(
        variables="POD_NAMESPACE", help="namespace of Kubernetes in which processes find each other",
        default="that of the service account or of the kubeconfig")] = None
    # fmt: on


class KubernetesConfig(Struct, frozen=True, kw_only=True):
    access: ClusterAccess
    namespace: str
    """The namespace of the objects; not Dynamo's."""
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
        asked = KubernetesSettings.from_env(environ)
        by_container = asked.readiness_of == "container"
        if by_container and not asked.container:
            raise ValueError("DYN_KUBE_DISCOVERY_MODE=container needs CONTAINER_NAME, the name of this container")
        access = find_access(environ)
        return cls(
            access=access,
            namespace=asked.namespace or access.namespace,
            pod=find_pod(environ),
            container=asked.container if by_container else None,
            locks=Path(tempfile.gettempdir()) / f"dynamo-pod-{os.geteuid()}",
        )

    @property
    def host(self) -> str:
        """The host of the API server: the way there leads through the network that pods share."""
        return urlsplit(self.access.server).hostname or ""

    @property
    def readiness_of(self) -> ReadinessOf:
        return "container" if self.container else "pod"
