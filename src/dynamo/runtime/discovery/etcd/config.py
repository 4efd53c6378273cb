"""Where etcd is and how to enter."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from msgspec import Struct

from dynamo.runtime.discovery.base import DiscoveryError


class EtcdConfig(Struct, frozen=True):
    """After the store lost records, their owners have `lease_ttl + return_grace` seconds to put them again."""

    endpoints: tuple[str, ...] = ("http://localhost:2379",)
    username: str | None = None
    password: str | None = None
    ca: str | None = None
    client_cert: str | None = None
    client_key: str | None = None
    lease_ttl: int = 6
    return_grace: float = 4.0
    prefix: str = "dynamo/"

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> EtcdConfig:
        def read(name: str) -> str | None:
            return environ.get(name) or None

        username, password = read("ETCD_AUTH_USERNAME"), read("ETCD_AUTH_PASSWORD")
        if (username is None) != (password is None):
            raise DiscoveryError("ETCD_AUTH_USERNAME and ETCD_AUTH_PASSWORD go together: set both or neither")
        cert, key = read("ETCD_AUTH_CLIENT_CERT"), read("ETCD_AUTH_CLIENT_KEY")
        if (cert is None) != (key is None):
            raise DiscoveryError("ETCD_AUTH_CLIENT_CERT and ETCD_AUTH_CLIENT_KEY go together: set both or neither")
        ca = read("ETCD_AUTH_CA")
        scheme = "https" if ca or cert else "http"
        named = [item.strip() for item in environ.get("ETCD_ENDPOINTS", "").split(",")]
        endpoints = tuple(_endpoint(item, scheme) for item in named if item)
        return cls(
            endpoints=endpoints or (f"{scheme}://localhost:2379",),
            username=username,
            password=password,
            ca=ca,
            client_cert=cert,
            client_key=key,
            lease_ttl=_seconds(read("ETCD_LEASE_TTL")),
        )


def _endpoint(text: str, scheme: str) -> str:
    url = text if "://" in text else f"{scheme}://{text}"
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise DiscoveryError(f"ETCD_ENDPOINTS: {text!r} is not host:port, http://host:port or https://host:port")
    return url.rstrip("/") if parts.port else f"{parts.scheme}://{parts.netloc}:2379"


def _seconds(text: str | None) -> int:
    if text is None:
        return EtcdConfig().lease_ttl
    try:
        seconds = int(text)
    except ValueError:
        seconds = 0
    if not 1 <= seconds <= 86400:
        raise DiscoveryError(f"ETCD_LEASE_TTL must be a number of seconds from 1 to 86400, not {text!r}")
    return seconds
