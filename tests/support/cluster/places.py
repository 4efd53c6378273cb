"""Where the programs of the control plane are, and the addresses inside the cluster's network namespace."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / ".kubernetes"
BIN = FOLDER / "bin"

SERVER = "https://172.30.0.1"
"""The API server for programs outside pods; those inside find it at its Service's address."""
SERVICES = "10.96.0.0/16"
API_SERVICE = "10.96.0.1"
DNS_SERVICE = "10.96.0.10"
API_HOST = "172.30.0.1"
POD_NETWORK = "10.244"
CRD_PORT = 9444
SHIM_PORT = 9445
ADMIN_TOKEN = "admintoken"
KUBELET_PORT = 10250

NEEDED = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")


def has(*programs: str) -> bool:
    return all((BIN / each).exists() for each in programs)
