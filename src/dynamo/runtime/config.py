"""How a process takes part in the network: read once at the entry point, then passed down."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from msgspec import Struct, structs

from dynamo.process.addresses import LOOPBACK, is_loopback, own_address
from dynamo.runtime.discovery import DiscoveryConfig
from dynamo.runtime.events import EventPlaneConfig
from dynamo.runtime.inspection.place import inspection_folder
from dynamo.runtime.nats.config import NatsConfig
from dynamo.runtime.plane.kept import KeepLimits
from dynamo.runtime.plane.tcp import TcpConfig
from dynamo.runtime.plane.tls import PlaneTls
from dynamo.runtime.status import StatusConfig
from dynamo.runtime.tracing.export import SpanSettings, span_settings
from dynamo.settings.network import NetworkSettings

PlaneKind = Literal["memory", "tcp", "nats"]
DeviceType = Literal["cpu", "cuda"]


class RuntimeConfig(Struct, frozen=True, kw_only=True):
    discovery: DiscoveryConfig
    plane: PlaneKind
    tcp: TcpConfig
    nats: NatsConfig
    events: EventPlaneConfig
    insecure_plane: bool = False
    """Other hosts may use the planes without a secret."""
    status: StatusConfig = StatusConfig()
    graceful_shutdown_timeout: float = 30.0
    keep: KeepLimits = KeepLimits()
    """How long and how much streams outlive their connections at a worker."""
    device_type: DeviceType | None = None
    gpus: str | None = None
    """The GPUs that the environment gives this process, as it names them."""
    inspection_folder: Path | None = None
    """Where the process listens for `dynamo inspect`; None for nowhere."""
    spans: SpanSettings | None = None
    """How the spans of requests to this process's endpoints are sent; None: they have none."""

    @classmethod
    def from_env(
        cls,
        environ: Mapping[str, str] = os.environ,
        *,
        discovery_backend: str | None = None,
        request_plane: str | None = None,
        event_plane: str | None = None,
        insecure_plane: bool | None = None,
    ) -> RuntimeConfig:
        """An argument beats its environment variable; a ValueError names the one that is wrong."""
        network = NetworkSettings.from_env(
            environ,
            discovery_backend=discovery_backend,
            request_plane=request_plane,
            event_plane=event_plane,
            insecure_plane=insecure_plane,
        )
        discovery = DiscoveryConfig.from_env(environ, network)
        in_process = discovery.backend == "memory"
        nats = NatsConfig.from_env(environ)
        peers = _hosts(discovery, nats)

        def reachable(chosen: str | None) -> str:
            """Without a chosen host, listen where the clients are: on loopback, unless discovery spans machines."""
            return chosen or (LOOPBACK if all(map(is_loopback, peers)) else own_address(peers))

        return cls(
            discovery=discovery,
            plane=network.request_plane or ("memory" if in_process else "tcp"),
            tcp=TcpConfig(
                host=reachable(network.tcp_host),
                port=network.tcp_port,
                token=network.plane_token,
                tls=PlaneTls(
                    cert=network.tcp_tls_cert,
                    key=network.tcp_tls_key,
                    ca=network.tcp_tls_ca,
                    insecure=network.tcp_tls_insecure,
                    server_name=network.tcp_tls_server_name,
                    handshake_timeout=network.tcp_tls_handshake_timeout,
                ),
                peers=peers,
            ),
            nats=nats,
            events=EventPlaneConfig(
                network.event_plane or ("memory" if in_process else "zmq"),
                reachable(network.event_host),
                peers,
                network.plane_token,
            ),
            insecure_plane=network.insecure_plane,
            status=StatusConfig.from_env(environ),
            graceful_shutdown_timeout=network.graceful_shutdown_timeout,
            keep=KeepLimits(network.stream_wait, network.stream_buffer_mb << 20),
            device_type=_device_type(environ),
            gpus=(environ.get("CUDA_VISIBLE_DEVICES") or environ.get("NVIDIA_VISIBLE_DEVICES") or "").strip() or None,
            inspection_folder=inspection_folder(environ) if network.inspect else None,
            spans=span_settings(environ),
        )

    @classmethod
    def in_process(cls, environ: Mapping[str, str] = os.environ) -> RuntimeConfig:
        """Nothing outside this process: no folder, no port, no service."""
        config = cls.from_env(environ, discovery_backend="memory", request_plane="memory", event_plane="memory")
        return config.without_status()

    def without_status(self) -> RuntimeConfig:
        """For processes that are not workers: DYN_SYSTEM_PORT means the workers beside them."""
        return structs.replace(self, status=StatusConfig(), spans=None)

    def with_graceful_shutdown_timeout(self, seconds: float) -> RuntimeConfig:
        """For a frontend, whose running requests have their full time even where the runtime's own limit is shorter."""
        return structs.replace(self, graceful_shutdown_timeout=max(self.graceful_shutdown_timeout, seconds))


def _device_type(environ: Mapping[str, str]) -> DeviceType | None:
    """What the variables that show or hide GPUs say; None if they say nothing."""
    cuda, container = environ.get("CUDA_VISIBLE_DEVICES"), environ.get("NVIDIA_VISIBLE_DEVICES")
    if cuda is None and not container:
        return None
    if cuda is not None and cuda.strip().lower() in ("", "-1", "none", "void"):
        return "cpu"
    return "cpu" if container and container.strip().lower() in ("none", "void") else "cuda"


def _hosts(discovery: DiscoveryConfig, nats: NatsConfig) -> tuple[str, ...]:
    """The hosts of etcd and NATS, or of the API server, which every process reaches, where discovery spans machines."""
    if discovery.kubernetes:
        return (discovery.kubernetes.host,)
    if discovery.backend != "etcd":
        return ()
    urls = [*discovery.etcd.endpoints, *(url if "://" in url else f"nats://{url}" for url in nats.servers)]
    return tuple(dict.fromkeys(host for url in urls if (host := urlsplit(url).hostname)))
