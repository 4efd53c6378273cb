"""How a process takes part in the network: read once at the entry point, then passed down."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlsplit

from msgspec import Struct, structs

from dynamo.runtime.discovery import DiscoveryConfig
from dynamo.runtime.events import EventPlaneConfig
from dynamo.runtime.nats_config import NatsConfig
from dynamo.runtime.own_address import own_address
from dynamo.runtime.plane.tcp import TcpConfig
from dynamo.runtime.status import StatusConfig

PlaneKind = Literal["memory", "tcp", "nats"]
PLANES: tuple[PlaneKind, ...] = ("memory", "tcp", "nats")


class RuntimeConfig(Struct, frozen=True, kw_only=True):
    discovery: DiscoveryConfig
    plane: PlaneKind
    tcp: TcpConfig
    nats: NatsConfig
    events: EventPlaneConfig
    status: StatusConfig = StatusConfig()
    graceful_shutdown_timeout: float = 30.0

    @classmethod
    def from_env(
        cls,
        environ: Mapping[str, str] = os.environ,
        *,
        discovery_backend: str | None = None,
        request_plane: str | None = None,
        event_plane: str | None = None,
    ) -> RuntimeConfig:
        """An argument beats its environment variable; a wrong value of either is a ValueError that says what fits."""
        discovery = DiscoveryConfig.from_env(environ, discovery_backend)
        in_process = discovery.backend == "memory"
        plane = request_plane or environ.get("DYN_REQUEST_PLANE") or ("memory" if in_process else "tcp")
        events = event_plane or environ.get("DYN_EVENT_PLANE") or ("memory" if in_process else None)
        nats = NatsConfig.from_env(environ)
        peers = _hosts(discovery, nats)
        return cls(
            discovery=discovery,
            plane=_plane_kind(plane),
            tcp=TcpConfig.from_env(environ, local_only=discovery.backend != "etcd", peers=peers),
            nats=nats,
            events=_reachable(EventPlaneConfig.from_env(environ, events), environ, discovery, peers),
            status=StatusConfig.from_env(environ),
            graceful_shutdown_timeout=_seconds(environ, "DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT", 30.0),
        )

    @classmethod
    def in_process(cls, environ: Mapping[str, str] = os.environ) -> RuntimeConfig:
        """Nothing outside this process: no folder, no port, no service."""
        config = cls.from_env(environ, discovery_backend="memory", request_plane="memory", event_plane="memory")
        return config.without_status()

    def without_status(self) -> RuntimeConfig:
        """For processes that are no workers: what tells the status of those is not for them."""
        return structs.replace(self, status=StatusConfig())


def _hosts(discovery: DiscoveryConfig, nats: NatsConfig) -> tuple[str, ...]:
    """The machines of the services that everyone reaches, where discovery spans machines."""
    if discovery.backend != "etcd":
        return ()
    urls = [*discovery.etcd.endpoints, *(url if "://" in url else f"nats://{url}" for url in nats.servers)]
    return tuple(dict.fromkeys(host for url in urls if (host := urlsplit(url).hostname)))


def _reachable(
    events: EventPlaneConfig, environ: Mapping[str, str], discovery: DiscoveryConfig, peers: tuple[str, ...]
) -> EventPlaneConfig:
    """Publishers listen where their readers are: on loopback, unless discovery spans machines."""
    if discovery.backend == "etcd" and not environ.get("DYN_EVENT_PLANE_HOST"):
        return structs.replace(events, host=own_address(peers), peers=peers)
    return structs.replace(events, peers=peers)


def _plane_kind(kind: str) -> PlaneKind:
    for known in PLANES:
        if kind == known or (kind == "mem" and known == "memory"):
            return known
    raise ValueError(f"unknown request plane '{kind}': use one of {', '.join(PLANES)}")


def _seconds(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name) or ""
    try:
        seconds = float(text) if text else default
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise ValueError(f"{name} must be a number of seconds, not '{text}'")
    return seconds
