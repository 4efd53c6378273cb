"""Which cluster is meant: that of a kubeconfig, or the one this pod runs in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from dynamo.kubernetes.cluster import SERVICE_ACCOUNT, ClusterAccess
from dynamo.kubernetes.files import ClusterAccessError
from dynamo.kubernetes.kubeconfig import read_kubeconfigs


def find_access(environ: Mapping[str, str], service_account: Path = SERVICE_ACCOUNT) -> ClusterAccess:
    """KUBECONFIG, else the service account of this pod, else ~/.kube/config."""
    if listed := environ.get("KUBECONFIG"):
        return read_kubeconfigs([Path(each) for each in listed.split(os.pathsep) if each])
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    if host and port:
        return ClusterAccess.from_service_account(host, port, service_account)
    default = Path(environ.get("HOME") or "/") / ".kube" / "config"
    if not default.exists():
        raise ClusterAccessError(
            "Kubernetes cannot be reached: this is no pod (KUBERNETES_SERVICE_HOST is not set), and there is no"
            " kubeconfig (KUBECONFIG or ~/.kube/config)"
        )
    return read_kubeconfigs([default])
