"""One process on the network: its runtime, and the endpoints it serves and calls."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
import warnings
from collections.abc import Callable, Coroutine, Hashable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import structs

from dynamo import __version__
from dynamo.protocols.instance import Instance
from dynamo.protocols.worker_name import worker_name
from dynamo.runtime import records
from dynamo.runtime.client import Client
from dynamo.runtime.config import RuntimeConfig
from dynamo.runtime.handler import GeneratorHandler, UserHandler
from dynamo.runtime.inspection import Inspection
from dynamo.runtime.names import EndpointId, card_key, check_part, instance_key, new_instance_id
from dynamo.runtime.network import Local, Network
from dynamo.runtime.plane.admission import RequestLimit
from dynamo.runtime.plane.base import route_path
from dynamo.runtime.plane.route import Route
from dynamo.runtime.status import EndpointStatus, Status, endpoint_labels
from dynamo.runtime.stream import Handler
from dynamo.runtime.tracing.export import SpanSettings, close_provider, span_provider

if TYPE_CHECKING:
    from dynamo.runtime.tracing.endpoint_spans import EndpointSpans

log = logging.getLogger(__name__)

T = TypeVar("T")


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
        """`status` belongs to another runtime of this process, which then reports this runtime's endpoints too."""
        del loop  # only accepted for programs written for older signatures
        if enable_nats is not None:
            warnings.warn("enable_nats has no effect; choose the planes", DeprecationWarning, stacklevel=2)
        self.config = config or RuntimeConfig.from_env(
            os.environ,
            discovery_backend=discovery_backend,
            request_plane=request_plane,
            event_plane=event_plane,
        )
        self.instance_id = new_instance_id()
        self.started = round(time.time(), 3)
        """In seconds since 1970."""
        self.engine: str | None = None
        """The name of the engine whose endpoints these are, for people."""
        asked = self.config.status
        # Health checks take an endpoint out of rotation also where no port shows their outcome.
        self._own_status = Status(asked) if status is None and (asked.on or asked.probes) else None
        self.status = status or self._own_status
        self.inspection = Inspection()
        if self._own_status:
            self._own_status.control_token = self.config.tcp.token
        self._network = Network(self.config, local or Local())
        self.discovery = self._network.discovery
        self.plane = self._network.plane
        self.events = self._network.events
        self.inspection.add("links", self.plane.link_rows)
        self._starting: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._drains = True
        self._parting: asyncio.Task[None] | None = None
        self._left = False
        self._closing = AsyncExitStack()
        self._clients: list[Client] = []
        self._owned: set[asyncio.Task[None]] = set()
        self._shared: dict[Hashable, Any] = {}
        self.spans = self._endpoint_spans(self.config.spans) if self.config.spans else None
        """What gives requests to this process's endpoints their spans; None where they have none."""
        self.serving: list[Endpoint] = []
        """The endpoints that requests are routed to, while they are registered."""
        self.has_served = False
        """An endpoint of this runtime was found by others, so that requests may be running."""

    async def start(self) -> None:
        """Reach discovery and the planes; raises an error that names what was tried and the fix."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        await asyncio.shield(self._starting)

    async def _start(self) -> None:
        if self._own_status and self.config.status.on:
            # Imported here: only a process that reports its status needs an HTTP server.
            from dynamo.runtime.status.server import StatusServer

            server = StatusServer(self._own_status, self.inspection)
            self._closing.push_async_callback(server.close)
            # Before the network is reached, so that probes get an answer meanwhile: not ready.
            await server.start()
        await self._network.start()

    def _endpoint_spans(self, settings: SpanSettings) -> EndpointSpans:
        # Imported here: the library behind it is large, and only some need it.
        from dynamo.runtime.tracing.endpoint_spans import EndpointSpans

        provider = span_provider(settings)
        self._closing.push_async_callback(asyncio.to_thread, close_provider, provider)
        return EndpointSpans(provider)

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
        """Set whether the program considers itself healthy; the status server, if there is one, reports it."""
        if self.status:
            self.status.set_program_health(ready)

    def own(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        """Run `work` in the background until `close` cancels it. A failure is logged with the name `what`."""
        task = asyncio.create_task(work)
        self._owned.add(task)
        task.add_done_callback(partial(self._disown, what))
        return task

    def _disown(self, what: str, task: asyncio.Task[None]) -> None:
        self._owned.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("%s ended: %s", what, error, exc_info=error)

    def shared(self, key: Hashable, make: Callable[[], T]) -> T:
        """The object of this runtime with this key; `make` creates it on first use."""
        if key not in self._shared:
            self._shared[key] = make()
        found: T = self._shared[key]
        return found

    def shutdown(self, *, drain: bool = True) -> None:
        """Leave discovery, finish running requests, return from every `serve_endpoint`.

        Without `drain`, running requests fail at once, so that they migrate: what answers them is dead.
        """
        self._drains &= drain
        if not self._stopping.is_set() and self.plane.transport == "nats":
            with contextlib.suppress(RuntimeError):  # no loop runs here
                self._parting = asyncio.get_running_loop().create_task(self._close_at_the_end())
        self._stopping.set()

    async def _close_at_the_end(self) -> None:
        """Close if the loop ends without `close`: NATS would lose what was sent last, such as a cancellation."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not self._left:
                await self.close()
            raise

    async def set_draining(self, draining: bool) -> None:
        """Whether routers leave this process's endpoints out; requests that run there go on."""
        for endpoint in tuple(self.serving):
            await endpoint.set_draining(draining)

    @property
    def drains(self) -> bool:
        """Whether running requests may finish at shutdown."""
        return self._drains

    @property
    def is_shutting_down(self) -> bool:
        return self._stopping.is_set()

    async def wait_for_shutdown(self) -> None:
        await self._stopping.wait()

    async def close(self) -> None:
        self._left = True
        self.shutdown()
        if self._parting and self._parting is not asyncio.current_task():
            self._parting.cancel()
            await asyncio.gather(self._parting, return_exceptions=True)
        if self._starting:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        owned = tuple(self._owned)
        for task in owned:
            task.cancel()
        await asyncio.gather(*owned, return_exceptions=True)
        for client in self._clients:
            await client.close()
        await self._network.close()
        await self._closing.aclose()

    async def __aenter__(self) -> DistributedRuntime:
        await self.start()
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()


class Namespace:
    """A group of components, usually those of one model."""

    def __init__(self, runtime: DistributedRuntime, name: str) -> None:
        self._runtime = runtime
        self.name = name

    def component(self, name: str) -> Component:
        return Component(self._runtime, self.name, check_part("component", name))


class Component:
    """A load-balanced service of a namespace: backend, prefill, router."""

    def __init__(self, runtime: DistributedRuntime, namespace: str, name: str) -> None:
        self.runtime = runtime
        self.namespace = namespace
        self.name = name

    async def create_service(self) -> None:
        """Kept for programs that call it: a component needs no creation, its endpoints register themselves."""

    def endpoint(self, name: str) -> Endpoint:
        return Endpoint(self.runtime, EndpointId(self.namespace, self.name, name))


class Endpoint:
    """An endpoint by name: to serve it from this process, or to call its instances."""

    def __init__(self, runtime: DistributedRuntime, endpoint_id: EndpointId) -> None:
        self.runtime = runtime
        self.id = endpoint_id
        self.instance_key = instance_key(endpoint_id, runtime.instance_id)
        """Where discovery has this process as an instance of it."""
        self.card_key = card_key(endpoint_id, runtime.instance_id)
        """Where it has the card of the model that this process serves here."""
        self.path = route_path(endpoint_id, runtime.instance_id)
        """Where the plane of this process serves it."""
        self._record: Instance | None = None
        """What discovery has of it, or gets when it registers again."""

    def __str__(self) -> str:
        return str(self.id)

    def connection_id(self) -> int:
        return self.runtime.instance_id

    async def client(self) -> Client:
        return await self.runtime.client(self.id)

    async def serve_endpoint(
        self,
        handler: UserHandler,
        graceful_shutdown: bool = True,
        metrics_labels: list[tuple[str, str]] | None = None,
        health_check_payload: dict[str, Any] | None = None,
    ) -> None:
        """Serve `handler`, an async generator of (request[, context]), until the runtime shuts down.

        `metrics_labels` are added to the metrics of this endpoint. With a `health_check_payload` the process is ready
        only while this endpoint is; if health checks are enabled it is sent to `handler` while the endpoint is idle.
        """
        generator = GeneratorHandler(handler)
        try:
            await self.serve(
                generator,
                graceful_shutdown=graceful_shutdown,
                metrics_labels=metrics_labels or (),
                health_check_payload=health_check_payload,
            )
        finally:
            await generator.close()

    async def serve(
        self,
        handler: Handler,
        request_type: Any = Any,
        *,
        graceful_shutdown: bool = True,
        auxiliary: bool = False,
        on_found: Callable[[], None] | None = None,
        metrics_labels: Sequence[tuple[str, str]] = (),
        health_check_payload: Any = None,
        limit: RequestLimit | None = None,
    ) -> None:
        """Serve a push handler. At shutdown: leave discovery, reject new requests, finish running ones.

        `on_found` is called once others can find the endpoint. An `auxiliary` endpoint supports another one: a process
        is not ready while it serves nothing else. Requests beyond the `limit` are rejected as busy. The rest is as for
        `serve_endpoint`.
        """
        runtime = self.runtime
        # It rejects wrong ones, also where no metrics are shown.
        labels = endpoint_labels(self.id, runtime.instance_id, metrics_labels)
        status_entry: EndpointStatus | None = None
        if status := runtime.status:
            status_entry = EndpointStatus(
                self.id.name, labels, handler, request_type, health_check_payload, status.config, auxiliary=auxiliary
            )
            # Before anything is awaited, so that endpoints served together make the process ready together.
            status.add(status_entry)
        await runtime.start()
        if runtime.spans:
            handler = runtime.spans.traced(handler, self.id, runtime.instance_id)
        counts = status_entry.counts if status_entry else None
        keep = None if auxiliary else runtime.config.keep
        route = Route(self.path, handler, request_type, counts, limit, keep)
        address = await runtime.plane.serve(route)
        remove_rows = runtime.inspection.add("streams", route.stream_rows)
        self._record = Instance(
            instance_id=runtime.instance_id,
            namespace=self.id.namespace,
            component=self.id.component,
            endpoint=self.id.name,
            transport=runtime.plane.transport,
            address=address,
            device_type=runtime.config.device_type,
            host=socket.gethostname(),
            pid=os.getpid(),
            started=runtime.started,
            gpus=runtime.config.gpus,
            engine=runtime.engine,
            version=__version__,
            health_check=health_check_payload,
        )
        try:
            runtime.has_served = True
            await self.register_endpoint_instance()
            if not auxiliary:
                runtime.serving.append(self)
            log.info("%s: serving %s as instance %x", worker_name(runtime.instance_id), self.id, runtime.instance_id)
            if status_entry:
                status_entry.begin(self._health_changed)
            if on_found:
                on_found()
            await runtime.wait_for_shutdown()
        finally:
            if self in runtime.serving:
                runtime.serving.remove(self)
            if status_entry:
                await status_entry.end()
            try:
                await self.unregister_endpoint_instance()
            finally:
                route.close()
                if graceful_shutdown and runtime.drains:
                    await route.drain(runtime.config.graceful_shutdown_timeout)
                route.kill()
                remove_rows()

    async def register_endpoint_instance(self) -> None:
        """Return to discovery after `unregister_endpoint_instance`."""
        if self._record is None:
            raise RuntimeError(f"{self.id} is not served yet")
        record = records.encode(self._record)
        await self.runtime.discovery.put(self.instance_key, record)

    async def _health_changed(self, ready: bool) -> None:
        """Publish whether the endpoint passes its health checks, so that routers pass over it while it does not."""
        assert self._record
        self._record = structs.replace(self._record, ready=ready)
        await self.register_endpoint_instance()

    async def set_draining(self, draining: bool) -> None:
        assert self._record
        self._record = structs.replace(self._record, draining=draining)
        await self.register_endpoint_instance()

    async def unregister_endpoint_instance(self) -> None:
        """Leave discovery; requests that run or still arrive are served."""
        await self.runtime.discovery.delete(self.instance_key)
