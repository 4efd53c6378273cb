"""One process's place on the network: its discovery, its planes, and the endpoints it serves or calls."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from typing import Any, TypeVar

from dynamo.runtime import discovery as discovery_room
from dynamo.runtime import events as events_room
from dynamo.runtime.client import Client
from dynamo.runtime.config import RuntimeConfig
from dynamo.runtime.discovery import Discovery, MemoryStore
from dynamo.runtime.endpoint import Endpoint, Namespace
from dynamo.runtime.events import EventPlane, MemoryBus
from dynamo.runtime.names import EndpointId, check_part, new_instance_id
from dynamo.runtime.nats import NatsConnection
from dynamo.runtime.plane.base import RequestPlane
from dynamo.runtime.plane.memory import MemoryHub, MemoryPlane
from dynamo.runtime.plane.nats import NatsPlane
from dynamo.runtime.plane.tcp import TcpPlane
from dynamo.runtime.status import Status

log = logging.getLogger(__name__)

T = TypeVar("T")


class Local:
    """What runtimes of one process share where others share a network."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.hub = MemoryHub()
        self.bus = MemoryBus()


class DistributedRuntime:
    """Reaches the network on first use, or at `start`. `shutdown` begins an orderly end, `close` completes it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop | None = None,
        discovery_backend: str | None = None,
        request_plane: str | None = None,
        enable_nats: bool | None = None,
        *,
        event_plane: str | None = None,
        config: RuntimeConfig | None = None,
        local: Local | None = None,
        status: Status | None = None,
    ) -> None:
        """`status` is that of another runtime of this process: whose it is tells it, for both."""
        del loop, enable_nats  # accepted for programs written against older signatures; both follow from the rest
        self.config = config or RuntimeConfig.from_env(
            os.environ,
            discovery_backend=discovery_backend,
            request_plane=request_plane,
            event_plane=event_plane,
        )
        self.instance_id = new_instance_id()
        self._own_status = Status(self.config.status) if status is None and self.config.status.on else None
        self.status = status or self._own_status
        local = local or Local()
        self._nats: NatsConnection | None = None
        self.discovery: Discovery = discovery_room.connect(self.config.discovery, local.store)
        self.plane: RequestPlane = self._make_plane(local)
        self.events: EventPlane = events_room.event_plane(
            self.config.events,
            self.discovery,
            bus=local.bus,
            nats=self._nats_connection() if self.config.events.kind == "nats" else None,
        )
        self._starting: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._clients: list[Client] = []
        self._owned: set[asyncio.Task[None]] = set()
        self._shared: dict[Hashable, Any] = {}

    def _make_plane(self, local: Local) -> RequestPlane:
        match self.config.plane:
            case "memory":
                return MemoryPlane(local.hub)
            case "nats":
                return NatsPlane(self._nats_connection())
        return TcpPlane(self.config.tcp)

    def _nats_connection(self) -> NatsConnection:
        """One connection serves both planes."""
        if self._nats is None:
            self._nats = NatsConnection(self.config.nats)
        return self._nats

    async def start(self) -> None:
        """Reach discovery and the planes; raises an error that names what was tried and the fix."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        await asyncio.shield(self._starting)

    async def _start(self) -> None:
        if self._own_status:
            # First, so that whoever asks is told that it is not ready yet.
            await self._own_status.start()
        await self.discovery.start()
        if self._nats:
            await self._nats.start()
        await self.plane.start()
        await self.events.start()

    def namespace(self, name: str) -> Namespace:
        return Namespace(self, check_part("namespace", name))

    def endpoint(self, name: str) -> Endpoint:
        """`ns.comp.ep` or `dyn://ns.comp.ep`, all three parts given."""
        return Endpoint(self, EndpointId.exact(name))

    async def client(self, endpoint: EndpointId) -> Client:
        await self.start()
        client = await Client(endpoint, self.discovery, self.plane).start()
        self._clients.append(client)
        return client

    def connection_id(self) -> int:
        return self.instance_id

    def set_health_status(self, ready: bool) -> None:
        """Whether this process is well, as its program sees it; told by the status server, where there is one."""
        if self.status:
            self.status.tell(ready)

    def own(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        """Run what stands beside the endpoints; `close` ends it. A failure before that is logged under `what`."""
        task = asyncio.create_task(work)
        self._owned.add(task)
        task.add_done_callback(partial(self._disown, what))
        return task

    def _disown(self, what: str, task: asyncio.Task[None]) -> None:
        self._owned.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("%s ended: %s", what, error, exc_info=error)

    def shared(self, key: Hashable, make: Callable[[], T]) -> T:
        """What all who use this runtime and ask for the same key share; made at the first asking."""
        if key not in self._shared:
            self._shared[key] = make()
        made: T = self._shared[key]
        return made

    def shutdown(self) -> None:
        """Leave discovery, finish what runs, return from every `serve_endpoint`."""
        self._stopping.set()

    @property
    def is_shutting_down(self) -> bool:
        return self._stopping.is_set()

    async def wait_for_shutdown(self) -> None:
        await self._stopping.wait()

    async def close(self) -> None:
        self.shutdown()
        if self._starting:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        owned = tuple(self._owned)
        for task in owned:
            task.cancel()
        await asyncio.gather(*owned, return_exceptions=True)
        for client in self._clients:
            await client.close()
        for part in (self.events, self.plane, self.discovery, self._nats, self._own_status):
            if part:
                await part.close()

    async def __aenter__(self) -> DistributedRuntime:
        await self.start()
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()
