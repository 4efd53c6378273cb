"""Discovery, the request plane and the event plane of a process, as its configuration says.

A plane that other hosts reach needs a secret, unless the operator says otherwise.
"""

from __future__ import annotations

import logging

from dynamo.process.addresses import is_loopback
from dynamo.runtime.config import RuntimeConfig
from dynamo.runtime.discovery import Discovery, MemoryStore, connect
from dynamo.runtime.events import EventPlane, MemoryBus, event_plane
from dynamo.runtime.nats.connection import NatsConnection
from dynamo.runtime.plane.base import PlaneError, RequestPlane
from dynamo.runtime.plane.memory import MemoryHub, MemoryPlane
from dynamo.runtime.plane.nats import NatsPlane
from dynamo.runtime.plane.tcp import TcpPlane


class Local:
    """The in-memory network that runtimes of one process share."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.hub = MemoryHub()
        self.bus = MemoryBus()


class Network:
    """Connected from `start` to `close`. Both planes share one connection to NATS."""

    def __init__(self, config: RuntimeConfig, local: Local) -> None:
        self._config = config
        self._nats = NatsConnection(config.nats) if "nats" in (config.plane, config.events.kind) else None
        self.discovery: Discovery = connect(config.discovery, local.store)
        self.plane = _request_plane(config, local, self._nats)
        self.events: EventPlane = event_plane(config.events, self.discovery, bus=local.bus, nats=self._nats)

    async def start(self) -> None:
        reject_if_open(self._config)
        await self.discovery.start()
        if self._nats:
            await self._nats.start()
        await self.plane.start()
        await self.events.start()

    async def close(self) -> None:
        await self.events.close()
        await self.plane.close()
        await self.discovery.close()
        if self._nats:
            await self._nats.close()


def _request_plane(config: RuntimeConfig, local: Local, nats: NatsConnection | None) -> RequestPlane:
    match config.plane:
        case "memory":
            return MemoryPlane(local.hub)
        case "nats":
            assert nats
            return NatsPlane(nats, config.tcp.token)
    return TcpPlane(config.tcp)


log = logging.getLogger(__name__)

_TWO_WAYS = (
    "set DYN_PLANE_TOKEN to one secret on all hosts (it protects both planes), "
    "or allow it with --insecure-plane (DYN_INSECURE_PLANE=1)"
)


def reject_if_open(config: RuntimeConfig) -> None:
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
