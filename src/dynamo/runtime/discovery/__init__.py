"""Discovery: which processes are alive, and what they serve."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

from msgspec import Struct

from dynamo.runtime.discovery.base import Change, Delete, Discovery, DiscoveryError, Put, Synced
from dynamo.runtime.discovery.etcd import EtcdConfig, EtcdDiscovery
from dynamo.runtime.discovery.file import FileDiscovery
from dynamo.runtime.discovery.folder import default_folder
from dynamo.runtime.discovery.memory import MemoryDiscovery, MemoryStore

__all__ = [
    "Change",
    "Delete",
    "Discovery",
    "DiscoveryConfig",
    "DiscoveryError",
    "EtcdConfig",
    "EtcdDiscovery",
    "FileDiscovery",
    "MemoryDiscovery",
    "MemoryStore",
    "Put",
    "Synced",
    "connect",
    "default_folder",
]

Backend = Literal["memory", "file", "etcd"]
_ALIASES = {"mem": "memory"}


class DiscoveryConfig(Struct, frozen=True):
    """Which store, and where. `file_folder` and `etcd` matter to their own backend only."""

    backend: Backend
    file_folder: Path
    etcd: EtcdConfig

    @classmethod
    def from_env(cls, environ: Mapping[str, str], backend: str | None = None) -> DiscoveryConfig:
        """The flag, else DYN_DISCOVERY_BACKEND, else etcd where ETCD_ENDPOINTS names one, else a folder."""
        source = "--discovery-backend" if backend else "DYN_DISCOVERY_BACKEND"
        named = backend or environ.get("DYN_DISCOVERY_BACKEND") or ("etcd" if environ.get("ETCD_ENDPOINTS") else "file")
        chosen: Backend
        match _ALIASES.get(named.lower(), named.lower()):
            case "memory":
                chosen = "memory"
            case "file":
                chosen = "file"
            case "etcd":
                chosen = "etcd"
            case _:
                raise DiscoveryError(f"{source} must be one of {', '.join(get_args(Backend))}, not {named!r}")
        # Without etcd its variables are not even checked.
        etcd = EtcdConfig.from_env(environ if chosen == "etcd" else {})
        return cls(chosen, default_folder(environ), etcd)


def connect(config: DiscoveryConfig, store: MemoryStore | None = None) -> Discovery:
    """The backend named by `config`, not yet started. Memory participants meet in `store`."""
    match config.backend:
        case "memory":
            return MemoryDiscovery(store or MemoryStore())
        case "file":
            return FileDiscovery(config.file_folder)
        case "etcd":
            return EtcdDiscovery(config.etcd)
