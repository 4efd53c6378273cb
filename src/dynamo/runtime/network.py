"""Discovery, the request plane and the event plane of a process, as its configuration says."""

from __future__ import annotations

from dynamo.runtime.config import RuntimeConfig
from dynamo.runtime.discovery import Discovery, MemoryStore, connect
from dynamo.runtime.events import EventPlane, MemoryBus, event_plane
from dynamo.runtime.exposure import refuse_if_open
from dynamo.runtime.nats.connection import NatsConnection
from dynamo.runtime.plane.base import RequestPlane
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
        refuse_if_open(self._config)
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
