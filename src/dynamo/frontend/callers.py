"""Who may call what: API keys, administrators' keys, their limits, and what this machine may do without any."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from ipaddress import ip_address
from typing import Any

from aiohttp import web

from dynamo.api.headers import is_json
from dynamo.api.host import Owner
from dynamo.api.route import OWNER, Access, AnyRoute
from dynamo.frontend.admission.cors import Cors
from dynamo.frontend.admission.keys import ANYBODY, ApiKeys
from dynamo.frontend.admission.limits import Clock, KeyMeter, RateLimitExceeded
from dynamo.frontend.config import FrontendConfig
from dynamo.protocols.engine import Tenant
from dynamo.protocols.errors import DynamoException, HttpError

MOST_HOSTS = 256
BYTES_PER_TOKEN = 4
"""How many bytes of a request's body count as one token, before the prompt is tokenized."""


class Callers:
    def __init__(self, config: FrontendConfig, keys: ApiKeys, clock: Clock = time.monotonic) -> None:
        self._config = config
        self._keys = keys
        self._cors = Cors(config.cors_allow_origins)
        self._meters = {key.owner: KeyMeter(key.limits.divided(config.workers), clock) for key in keys if key.limits}
        if not keys.closed and config.default_key_limits:
            self._meters[ANYBODY] = KeyMeter(config.default_key_limits.divided(config.workers), clock)
        self._tenants: dict[str, Tenant] = {}
        count = len(tuple(keys)) if keys.closed else 0
        self.share_workers = count > 1
        """Several keys take turns."""
        if keys.closed:
            self._tenants = {key.owner: key.tenant(count, config.share_kv_cache) for key in keys}
        self.has_limits = bool(self._meters)
        self._local_hosts: set[str] = set()
        """Headers that were found to name this machine."""

    def admit(self, request: web.Request, access: Access) -> Tenant | None:
        """Who the caller is in the routers' queues, where the server has keys.

        Raises Unauthorized, or an HttpError that says why this route is closed.
        """
        if not self._keys.closed:
            self._keep_web_pages_out(request)
        if access is Access.ADMIN:
            self._admit_admin(request)
        elif access is Access.KEY or (access is Access.METRICS and self._config.protect_metrics):
            owner = request[OWNER] = self._keys.check(request.headers)
            return self._tenants.get(owner)
        return None

    def meter(self, owner: str) -> KeyMeter | None:
        """The meter of this owner's key, if that key has limits."""
        return self._meters.get(owner)

    def tenant(self, owner: str) -> Tenant | None:
        """Who the owner is for other queues, where the server has keys."""
        return self._tenants.get(owner)

    def owners(self) -> dict[str, Owner]:
        """All whose state is kept, by name."""
        return {name: Owner(partial(_admit, self.meter(name)), self.tenant(name)) for name in self._keys.owners}

    def sees_addresses(self, request: web.Request) -> bool:
        """Whether the caller may know where workers are: with a key, or on this machine where there are none."""
        if self._keys.closed or self._keys.has_admins:
            return self._keys.is_known(request.headers)
        return self._config.is_local

    def is_admin(self, request: web.Request) -> bool:
        """Whether an administrator's route would be open to it."""
        owner = request.get(OWNER)
        try:
            self._admit_admin(request)
        except DynamoException:
            return False
        finally:
            if owner is not None:
                request[OWNER] = owner
        return True

    def _keep_web_pages_out(self, request: web.Request) -> None:
        """Where no key is needed, a page of any web site could ask by way of a browser on this machine."""
        sent = request.headers
        host = sent.get("Host")
        if host not in self._local_hosts and host is not None and self._config.is_local:
            self._check_host(host)
        if request.method in ("GET", "HEAD", "OPTIONS") or (origin := sent.get("Origin")) is None:
            return
        # Browsers ask before they send JSON to another site, and are told that they may not.
        if is_json(request.content_type) or self._cors.allows_all or self._cors.allows(origin):
            return
        if origin.partition("://")[2].lower() != sent.get("Host", "").lower():
            raise HttpError(
                403, "Only JSON is taken from web pages of other sites; --cors-allow-origin names those to trust."
            )

    def _check_host(self, host: str) -> None:
        if not _is_this_machine(host) and _name_of(host) not in self._config.allowed_hosts:
            raise HttpError(
                403,
                "This server answers on this machine only: call it as http://localhost or by its address, "
                "or name the host in --http-allowed-hosts.",
            )
        if len(self._local_hosts) < MOST_HOSTS:
            self._local_hosts.add(host)

    def _admit_admin(self, request: web.Request) -> None:
        if self._keys.has_admins:
            key = self._keys.find(request.headers)
            if not key.admin:
                raise HttpError(403, "This route is for administrators: it needs a key given with --admin-key.")
            request[OWNER] = key.owner
            return
        request[OWNER] = self._keys.check(request.headers)
        if self._keys.closed or not self._config.is_local:
            raise HttpError(403, "This route is closed: the server was started without --admin-key (DYN_ADMIN_KEY).")
        # Any program on this machine may call it, but not a web page that a browser on this machine shows.
        if not _is_this_machine(request.headers.get("Host", "")):
            raise HttpError(403, "This route is only for this machine: call it as http://localhost or by its address.")
        origin = request.headers.get("Origin")
        if origin is not None and not self._cors.allows(origin) and not _is_same(origin, request):
            raise HttpError(
                403, "This route is not for web pages of other sites; --cors-allow-origin names those it is for."
            )


def _admit(meter: KeyMeter | None, size: int) -> float | Callable[[int], None]:
    """Admit a line of a batch of `size` bytes."""
    if meter is None:
        return lambda used: None
    try:
        return meter.admit(size // BYTES_PER_TOKEN + 1).end
    except RateLimitExceeded as error:
        return error.retry_after


def tokens_reserved(route: AnyRoute, body: Any, raw_body: bytes | bytearray) -> int:
    """An estimate of what a request will use: its body's length, and the longest answer it asks for."""
    for name in route.limits:
        longest = getattr(body, name, None)
        if isinstance(longest, int):
            return len(raw_body) // BYTES_PER_TOKEN + max(1, longest)
    return len(raw_body) // BYTES_PER_TOKEN + 1


def _is_this_machine(host: str) -> bool:
    """Whether a Host header names this machine. Any other name could be one that a web site lets lead here."""
    name = _name_of(host)
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def _name_of(host: str) -> str:
    """A Host header without its port."""
    name, _, port = host.rpartition(":")
    return (name if port.isdecimal() and not host.endswith("]") else host).strip("[]").lower()


def _is_same(origin: str, request: web.Request) -> bool:
    return origin.lower() == f"{request.scheme}://{request.headers.get('Host', '')}".lower()
