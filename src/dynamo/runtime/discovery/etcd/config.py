"""Where etcd is and how to log in: the `ETCD_*` variables."""

from collections.abc import Mapping
from typing import Annotated, Self
from urllib.parse import urlsplit

from msgspec import Meta

from dynamo.process.addresses import without_credentials
from dynamo.runtime.discovery.base import DiscoveryError
from dynamo.settings import Setting, Settings, read

RETRY_SECONDS = (0.1, 1.0)
"""The first and the longest pause after etcd could not be reached or refused."""


class EtcdConfig(Settings, frozen=True, kw_only=True):
    """After the store lost records, their owners have `lease_ttl + return_grace` seconds to put them again."""

    # fmt: off
    endpoints: Annotated[tuple[str, ...], Setting(
        variables="ETCD_ENDPOINTS",
        help="addresses, with commas between them; setting it chooses etcd")] = ("http://localhost:2379",)
    username: Annotated[str | None, Setting(variables="ETCD_AUTH_USERNAME", help="user; needs the password")] = None
    password: Annotated[str | None, Setting(variables="ETCD_AUTH_PASSWORD", help="its password", secret=True)] = None
    ca: Annotated[str | None, Setting(
        variables="ETCD_AUTH_CA", help="authority that signed the servers' certificates")] = None
    client_cert: Annotated[str | None, Setting(
        variables="ETCD_AUTH_CLIENT_CERT", help="client certificate; needs the key")] = None
    client_key: Annotated[str | None, Setting(variables="ETCD_AUTH_CLIENT_KEY", help="and its key")] = None
    lease_ttl: Annotated[int, Meta(ge=1, le=86400), Setting(
        variables="ETCD_LEASE_TTL", help="seconds until the records of a dead process are gone")] = 6
    # fmt: on
    return_grace: float = 4.0
    prefix: str = "dynamo/"

    @classmethod
    def from_env(cls, environ: Mapping[str, str], **flags: object) -> Self:
        try:
            values = read(cls, environ, flags)
        except ValueError as error:
            raise DiscoveryError(str(error)) from None
        for one, other in (("username", "password"), ("client_cert", "client_key")):
            if (one in values) != (other in values):
                names = (f"ETCD_AUTH_{name.upper()}" for name in (one, other))
                raise DiscoveryError(f"{' and '.join(names)} go together: set both or neither")
        scheme = "https" if values.get("ca") or values.get("client_cert") else "http"
        listed = values.get("endpoints") or ("localhost:2379",)
        return cls(**values | {"endpoints": tuple(_endpoint(each, scheme) for each in listed)})


def _endpoint(text: str, scheme: str) -> str:
    url = text if "://" in text else f"{scheme}://{text}"
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise DiscoveryError(
            f"ETCD_ENDPOINTS: {without_credentials(text)!r} is not host:port, http://host:port or https://host:port"
        )
    return url.rstrip("/") if parts.port else f"{parts.scheme}://{parts.netloc}:2379"
