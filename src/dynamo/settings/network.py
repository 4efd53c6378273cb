"""How the processes of a deployment reach each other. `dynamo.runtime` has the behaviour."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from dynamo.settings.setting import Setting
from dynamo.settings.table import Settings

_MEM = (("mem", "memory"),)
_HOST = "loopback; with etcd on another host, the address that leads to it"


def _path(text: str) -> Path:
    return Path(text).expanduser()


class NetworkSettings(Settings, frozen=True, kw_only=True):
    GROUP: ClassVar[str] = "network"

    # fmt: off
    discovery_backend: Annotated[Literal["memory", "file", "etcd", "kubernetes"] | None, Setting(
        "--discovery-backend", "DYN_DISCOVERY_BACKEND", "where processes find each other", "NAME", default="file",
        synonyms=_MEM)] = None
    request_plane: Annotated[Literal["memory", "tcp", "nats"] | None, Setting(
        "--request-plane", "DYN_REQUEST_PLANE", "how requests travel", "NAME", default="tcp", synonyms=_MEM)] = None
    event_plane: Annotated[Literal["memory", "zmq", "nats"] | None, Setting(
        "--event-plane", "DYN_EVENT_PLANE", "how KV events and load travel", "NAME", default="zmq",
        synonyms=_MEM)] = None
    file_folder: Annotated[Path | None, Setting(
        variables="DYN_FILE_KV", help="folder of the backend file", default="this user's runtime folder",
        parse=_path)] = None
    tcp_host: Annotated[str | None, Setting(
        variables="DYN_TCP_RPC_HOST", help="address where a worker takes requests over TCP", default=_HOST)] = None
    tcp_port: Annotated[int, Meta(ge=0, le=65535), Setting(
        variables="DYN_TCP_RPC_PORT", help="port where a worker takes requests over TCP", default="a free one")] = 0
    plane_token: Annotated[str | None, Setting(
        variables=("DYN_PLANE_TOKEN", "DYN_REQUEST_PLANE_TOKEN"),
        help="secret that all processes must know to use each other's planes", secret=True)] = None
    insecure_plane: Annotated[bool, Setting(
        "--insecure-plane", "DYN_INSECURE_PLANE",
        "let any host that reaches the planes use them, without a token or certificates")] = False
    tcp_tls_cert: Annotated[Path | None, Setting(
        variables="DYN_TCP_TLS_CERT_PATH", help="certificate (PEM) that this process shows on the TCP plane",
        parse=_path)] = None
    tcp_tls_key: Annotated[Path | None, Setting(
        variables="DYN_TCP_TLS_KEY_PATH", help="the certificate's private key (PEM)", parse=_path)] = None
    tcp_tls_ca: Annotated[Path | None, Setting(
        variables="DYN_TCP_TLS_CA_CERT_PATH",
        help="authority (PEM) of the peers' certificates; with a certificate of its own, a worker requires one",
        parse=_path)] = None
    tcp_tls_server_name: Annotated[str | None, Setting(
        variables="DYN_TCP_TLS_SERVER_NAME", help="name in workers' certificates",
        default="the address that is connected to")] = None
    tcp_tls_insecure: Annotated[bool, Setting(
        variables="DYN_TCP_TLS_INSECURE", help="do not check workers' certificates")] = False
    tcp_tls_handshake_timeout: Annotated[float, Meta(gt=0, lt=1e6), Setting(
        variables="DYN_TCP_TLS_HANDSHAKE_TIMEOUT_SECS", help="seconds a TLS handshake may take")] = 5.0
    event_host: Annotated[str | None, Setting(
        variables="DYN_EVENT_PLANE_HOST", help="address where ZMQ publishers listen; 0.0.0.0 finds one others reach",
        default=_HOST)] = None
    graceful_shutdown_timeout: Annotated[float, Meta(ge=0, lt=1e9), Setting(
        variables="DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT",
        help="seconds a worker's running requests have after SIGTERM")] = 30.0
    stream_wait: Annotated[float, Meta(ge=0, lt=1e9), Setting(
        variables="DYN_STREAM_WAIT_SECS",
        help="seconds a worker keeps a stream whose frontend was lost, for another frontend; 0: none")] = 30.0
    stream_buffer_mb: Annotated[int, Meta(ge=1, lt=1 << 20), Setting(
        variables="DYN_STREAM_BUFFER_MB", help="memory of a worker for the kept streams of one API key, in MB")] = 16
    inspect: Annotated[bool, Setting(
        variables="DYN_INSPECT", help="answer `dynamo inspect` of the same user, over a Unix socket")] = True
    # fmt: on
