"""Where NATS is and how to log in: the `NATS_*` variables."""

from typing import Annotated
from urllib.parse import urlsplit

from dynamo.process.addresses import without_credentials
from dynamo.settings import Setting, Settings

DEFAULT_SERVER = "nats://localhost:4222"


def _servers(text: str) -> tuple[str, ...]:
    return tuple(server.strip() for server in text.split(",") if server.strip())


class NatsConfig(Settings, frozen=True, kw_only=True):
    # fmt: off
    servers: Annotated[tuple[str, ...], Setting(
        variables="NATS_SERVER", help="servers, with commas between them", parse=_servers)] = (DEFAULT_SERVER,)
    username: Annotated[str | None, Setting(variables="NATS_AUTH_USERNAME", help="user; needs the password")] = None
    password: Annotated[str | None, Setting(variables="NATS_AUTH_PASSWORD", help="its password", secret=True)] = None
    token: Annotated[str | None, Setting(variables="NATS_AUTH_TOKEN", help="token, not a user", secret=True)] = None
    nkey_seed: Annotated[str | None, Setting(variables="NATS_AUTH_NKEY", help="NKey seed", secret=True)] = None
    credentials_file: Annotated[str | None, Setting(
        variables="NATS_AUTH_CREDENTIALS_FILE", help="credentials file (JWT and seed)")] = None
    tls_ca_file: Annotated[str | None, Setting(
        variables="NATS_TLS_CA_CERT_PATH", help="authority that signed the servers' certificates")] = None
    tls_cert_file: Annotated[str | None, Setting(
        variables="NATS_TLS_CERT_PATH", help="client certificate; needs the key")] = None
    tls_key_file: Annotated[str | None, Setting(variables="NATS_TLS_KEY_PATH", help="and its key")] = None
    # fmt: on

    def __post_init__(self) -> None:
        if not self.servers:
            raise ValueError("NATS_SERVER names no server")
        for server in self.servers:
            _check_server(server)
        if (self.username is None) != (self.password is None):
            raise ValueError("NATS_AUTH_USERNAME and NATS_AUTH_PASSWORD go together: set both or neither")
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("NATS_TLS_CERT_PATH and NATS_TLS_KEY_PATH go together: set both or neither")

    @property
    def where(self) -> str:
        """The servers, for messages: without the passwords a URL may carry."""
        return ",".join(without_credentials(server) for server in self.servers)


def _check_server(server: str) -> None:
    expected = f"NATS_SERVER: {without_credentials(server)!r} is not an address such as {DEFAULT_SERVER}"
    try:
        parts = urlsplit(server if "://" in server else f"nats://{server}")
        if parts.scheme not in ("nats", "tls", "ws", "wss") or not parts.hostname or parts.port == 0:
            raise ValueError(expected)
    except ValueError as error:
        raise ValueError(expected) from error
