"""Discovery: which processes are alive, and what they serve."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct

from dynamo.runtime.discovery.base import Change, Delete, Discovery, DiscoveryError, Put, Synced
from dynamo.runtime.discovery.etcd import EtcdConfig, EtcdDiscovery
from dynamo.runtime.discovery.file import FileDiscovery
from dynamo.runtime.discovery.folder import default_folder
from dynamo.runtime.discovery.kubernetes import KubernetesConfig, KubernetesDiscovery
from dynamo.runtime.discovery.memory import MemoryDiscovery, MemoryStore
from dynamo.settings.network import NetworkSettings

__all__ = [
    "Change",
    "Delete",
    "Discovery",
    "DiscoveryConfig",
    "DiscoveryError",
    "EtcdConfig",
    "EtcdDiscovery",
    "FileDiscovery",
    "KubernetesConfig",
    "KubernetesDiscovery",
    "MemoryDiscovery",
    "MemoryStore",
    "Put",
    "Synced",
    "connect",
    "default_folder",
]

Backend = Literal["memory", "file", "etcd", "kubernetes"]


class DiscoveryConfig(Struct, frozen=True):
    """Which store, and where. `file_folder`, `etcd` and `kubernetes` matter to their own backend only."""

    backend: Backend
    file_folder: Path
    etcd: EtcdConfig
    kubernetes: KubernetesConfig | None = None

    @classmethod
    def from_env(cls, environ: Mapping[str, str], network: NetworkSettings) -> DiscoveryConfig:
        """Without a chosen backend, etcd where ETCD_ENDPOINTS is set, else a folder."""
        backend = network.discovery_backend or ("etcd" if environ.get("ETCD_ENDPOINTS") else "file")
        # A broken ETCD_* variable is no concern of those who do not use etcd.
        etcd = EtcdConfig.from_env(environ if backend == "etcd" else {})
        kubernetes = KubernetesConfig.from_env(environ) if backend == "kubernetes" else None
        return cls(backend, network.file_folder or default_folder(environ), etcd, kubernetes)


def connect(config: DiscoveryConfig, store: MemoryStore | None = None) -> Discovery:
    """The backend named by `config`, not yet started. Memory participants meet in `store`."""
    match config.backend:
        case "memory":
            return MemoryDiscovery(store or MemoryStore())
        case "file":
            return FileDiscovery(config.file_folder)
        case "etcd":
            return EtcdDiscovery(config.etcd)
        case "kubernetes":
            assert config.kubernetes
            return KubernetesDiscovery(config.kubernetes)
