"""A plane that other hosts reach needs a secret, unless the operator says otherwise."""

from __future__ import annotations

import logging

from dynamo.process.own_address import is_loopback
from dynamo.runtime.config import RuntimeConfig
from dynamo.runtime.plane.base import PlaneError

log = logging.getLogger(__name__)

_TWO_WAYS = (
    "set DYN_PLANE_TOKEN to one secret on all hosts (it protects both planes), "
    "or allow it with --insecure-plane (DYN_INSECURE_PLANE=1)"
)


def refuse_if_open(config: RuntimeConfig) -> None:
    """Raises `PlaneError` where a host beyond this one could use a plane without a secret."""
    exposed = _exposed(config)
    if not exposed:
        return
    open_planes = [plane for plane, is_protected in exposed.items() if not is_protected]
    if not open_planes:
        log.info("other hosts reach %s: protected by %s", " and ".join(exposed), _protection(config))
    elif config.insecure_plane:
        log.warning(
            "any host that reaches %s can use it, without a secret (--insecure-plane)", " and ".join(open_planes)
        )
    else:
        ways = _TWO_WAYS
        if config.tcp.tls.identifies_clients:
            ways = f"TLS protects the request plane only: {ways}, or use --event-plane nats"
        elif config.tcp.tls.cert:
            ways = f"without DYN_TCP_TLS_CA_CERT_PATH any client is accepted: set it, or {ways}"
        raise PlaneError(f"other hosts could use {' and '.join(open_planes)} without a secret: {ways}")


def _exposed(config: RuntimeConfig) -> dict[str, bool]:
    """The planes that listen beyond loopback, and whether each is protected. NATS guards its own."""
    token = config.tcp.token is not None
    exposed = {}
    if config.plane == "tcp" and not is_loopback(config.tcp.host):
        exposed[f"the request plane on {config.tcp.host}"] = token or config.tcp.tls.identifies_clients
    if config.events.kind == "zmq" and not is_loopback(config.events.host):
        exposed[f"the event plane on {config.events.host}"] = token
    return exposed


def _protection(config: RuntimeConfig) -> str:
    ways = []
    if config.tcp.tls.identifies_clients:
        ways.append("mutual TLS")
    elif config.tcp.tls.cert:
        ways.append("TLS")
    if config.tcp.token is not None:
        ways.append("a token")
    return " and ".join(ways)
