"""Namespace, component, endpoint: the path from a runtime to something that serves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dynamo.protocols.instance import Instance
from dynamo.runtime import records
from dynamo.runtime.client import Client
from dynamo.runtime.handler import GeneratorHandler, UserHandler
from dynamo.runtime.names import EndpointId, check_part, instance_key
from dynamo.runtime.plane.base import route_path
from dynamo.runtime.plane.route import Route
from dynamo.runtime.status import ServedEndpoint, endpoint_labels
from dynamo.runtime.stream import Handler

if TYPE_CHECKING:
    from dynamo.runtime.distributed import DistributedRuntime

log = logging.getLogger(__name__)


class Namespace:
    """A pipeline, usually a model."""

    def __init__(self, runtime: DistributedRuntime, name: str) -> None:
        self._runtime = runtime
        self.name = name

    def component(self, name: str) -> Component:
        return Component(self._runtime, self.name, check_part("component", name))


class Component:
    """A load-balanced service of a pipeline: backend, prefill, router."""

    def __init__(self, runtime: DistributedRuntime, namespace: str, name: str) -> None:
        self.runtime = runtime
        self.namespace = namespace
        self.name = name

    async def create_service(self) -> None:
        """Kept for programs that call it: a component needs no creation, its endpoints register themselves."""

    def endpoint(self, name: str) -> Endpoint:
        return Endpoint(self.runtime, EndpointId(self.namespace, self.name, name))


class Endpoint:
    """What one instance serves under a name, and how others call it."""

    def __init__(self, runtime: DistributedRuntime, endpoint_id: EndpointId) -> None:
        self.runtime = runtime
        self.id = endpoint_id
        self._record: bytes | None = None

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
        only while this endpoint is; where checks are switched on it is sent to `handler` when nothing else comes.
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
        on_found: Callable[[], None] | None = None,
        metrics_labels: Sequence[tuple[str, str]] = (),
        health_check_payload: Any = None,
    ) -> None:
        """Serve a handler that pushes. Ends in order: leave discovery, refuse what is new, finish what runs.

        `on_found` is called once others can find it; the last two are as for `serve_endpoint`.
        """
        runtime = self.runtime
        await runtime.start()
        served = self._told(handler, request_type, metrics_labels, health_check_payload)
        counts = served.counts if served else None
        route = Route(route_path(self.id, runtime.instance_id), handler, request_type, counts)
        address = await runtime.plane.serve(route)
        instance = Instance(
            instance_id=runtime.instance_id,
            namespace=self.id.namespace,
            component=self.id.component,
            endpoint=self.id.name,
            transport=runtime.plane.transport,
            address=address,
        )
        self._record = records.encode(instance)
        try:
            await self.register_endpoint_instance()
            log.info("serving %s as instance %x", self.id, runtime.instance_id)
            if served:
                served.begin()
            if on_found:
                on_found()
            await runtime.wait_for_shutdown()
        finally:
            if served:
                await served.end()
            await self.unregister_endpoint_instance()
            route.close()
            if graceful_shutdown:
                await self._finish(route)
            route.kill()

    def _told(
        self, handler: Handler, request_type: Any, labels: Sequence[tuple[str, str]], payload: Any
    ) -> ServedEndpoint | None:
        """This endpoint in the status of its process, where that is told to anybody."""
        status = self.runtime.status
        named = endpoint_labels(self.id, self.runtime.instance_id, labels)
        if status is None:
            return None
        served = ServedEndpoint(self.id.name, named, handler, request_type, payload, status.config)
        status.add(served)
        return served

    async def _finish(self, route: Route) -> None:
        limit = self.runtime.config.graceful_shutdown_timeout
        if route.active:
            log.info("leaving: waiting up to %g s for %d running requests", limit, route.active)
        try:
            async with asyncio.timeout(limit):
                await route.idle()
        except TimeoutError:
            log.warning("%d requests did not finish within %g s and are ended now", route.active, limit)

    async def register_endpoint_instance(self) -> None:
        """Be found again after `unregister_endpoint_instance`."""
        if self._record is None:
            raise RuntimeError(f"{self.id} is not served yet")
        await self.runtime.discovery.put(instance_key(self.id, self.runtime.instance_id), self._record)

    async def unregister_endpoint_instance(self) -> None:
        """Stop being found; requests that run or still arrive are served."""
        await self.runtime.discovery.delete(instance_key(self.id, self.runtime.instance_id))
