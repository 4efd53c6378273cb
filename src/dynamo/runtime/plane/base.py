"""The interface of request planes: requests to workers, streams back, cancellation both ways.

A worker `serve`s paths; a client asks for the `Channel` to an instance and sends on it. Memory, TCP and NATS are peers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from dynamo.protocols.errors import StartError
from dynamo.protocols.instance import Instance, Transport
from dynamo.runtime.context import Context
from dynamo.runtime.names import EndpointId
from dynamo.runtime.plane.route import Route
from dynamo.runtime.stream import Sink

CancelStream = Callable[[bool], None]
"""Stops one stream at its worker, or kills it (True), which also fails it with Cancelled at once."""


def nothing_to_cancel(killed: bool) -> None:
    """Cancel a request that failed before it was sent: there is nothing to do."""


class Channel(Protocol):
    """The connection to one instance, whatever carries it."""

    @property
    def ready(self) -> bool:
        """Whether `send` may be called now; otherwise `await open()` first."""

    @property
    def draining(self) -> bool:
        """The instance announced that it takes no new requests."""

    @property
    def announced_end(self) -> bool:
        """The instance announced its end on this or an earlier connection."""

    @property
    def unheard(self) -> bool:
        """The instance has not answered pings for some seconds, although its connection stands."""

    async def open(self) -> None:
        """Reach the instance; raises CannotConnect."""

    def send(
        self, request: Any, context: Context, sink: Sink, *, item_type: Any = Any, columnar: bool = False
    ) -> CancelStream:
        """Send one request; its stream is pushed into `sink`, items decoded as `item_type`.

        Raises CannotConnect when the connection was lost since `open`: nothing was sent, and `sink` is not called.

        Stopping or killing `context` travels to the worker. A killed stream fails with Cancelled at once. What is
        returned does the same to this stream alone.
        """


class RequestPlane(Protocol):
    transport: Transport

    async def start(self) -> None:
        """Be ready to serve and to connect; raises PlaneError naming the fix."""

    async def serve(self, route: Route) -> str:
        """Accept requests for `route.path` until the route is closed; returns the address to publish."""

    def channel(self, instance: Instance) -> Channel:
        """The channel to this instance; channels to one process share its connection."""

    def link_rows(self) -> Iterable[dict[str, Any]]:
        """The open connections, for people."""

    async def close(self) -> None:
        """Fail what is still open and close every connection."""


class PlaneError(StartError):
    """The request plane cannot be used; the message names what was tried and the fix."""


def instance_path(instance: Instance) -> str:
    return route_path(EndpointId(instance.namespace, instance.component, instance.endpoint), instance.instance_id)


def route_path(endpoint: EndpointId, instance_id: int) -> str:
    return f"{endpoint.path}/{instance_id:x}"
