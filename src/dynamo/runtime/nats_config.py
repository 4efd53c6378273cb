"""Where NATS is and how to get in: the `NATS_*` variables."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from msgspec import Struct

DEFAULT_SERVER = "nats://localhost:4222"


class NatsConfig(Struct, frozen=True):
    servers: tuple[str, ...] = (DEFAULT_SERVER,)
    username: str | None = None
    password: str | None = None
    token: str | None = None
    nkey_seed: str | None = None
    credentials_file: str | None = None
    tls_ca_file: str | None = None

    def __post_init__(self) -> None:
        if not self.servers:
            raise ValueError("NATS_SERVER names no server")
        for server in self.servers:
            _check_server(server)
        if (self.username is None) != (self.password is None):
            raise ValueError("NATS_AUTH_USERNAME and NATS_AUTH_PASSWORD go together: set both or neither")

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> NatsConfig:
        listed = environ.get("NATS_SERVER", "").strip() or DEFAULT_SERVER
        return cls(
            servers=tuple(server.strip() for server in listed.split(",") if server.strip()),
            username=environ.get("NATS_AUTH_USERNAME") or None,
            password=environ.get("NATS_AUTH_PASSWORD") or None,
            token=environ.get("NATS_AUTH_TOKEN") or None,
            nkey_seed=environ.get("NATS_AUTH_NKEY") or None,
            credentials_file=environ.get("NATS_AUTH_CREDENTIALS_FILE") or None,
            tls_ca_file=environ.get("NATS_TLS_CA_CERT_PATH") or None,
        )

    @property
    def where(self) -> str:
        """The servers, for messages: without the passwords a URL may carry."""
        return ",".join(_without_userinfo(server) for server in self.servers)


def _check_server(server: str) -> None:
    expected = f"NATS_SERVER: {_without_userinfo(server)!r} is not an address such as {DEFAULT_SERVER}"
    try:
        parts = urlsplit(server if "://" in server else f"nats://{server}")
        if parts.scheme not in ("nats", "tls", "ws", "wss") or not parts.hostname or parts.port == 0:
            raise ValueError(expected)
    except ValueError as error:
        raise ValueError(expected) from error


def _without_userinfo(server: str) -> str:
    scheme, separator, rest = server.rpartition("://")
    return scheme + separator + rest.rpartition("@")[2]
