"""The request plane inside one process: a direct call, with the same rules as over a wire."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from dynamo.protocols.errors import Cancelled, CannotConnect, DynamoException, InvalidArgument, NotFound
from dynamo.protocols.instance import Instance, Transport
from dynamo.runtime.context import Context
from dynamo.runtime.plane.base import CancelStream, instance_path, nothing_to_cancel
from dynamo.runtime.plane.frames import as_builtin
from dynamo.runtime.plane.route import Route
from dynamo.runtime.stream import Sink


class MemoryHub:
    """The routes of all memory planes of one process."""

    def __init__(self) -> None:
        self.routes: dict[str, Route] = {}


class MemoryPlane:
    transport: Transport = "memory"

    def __init__(self, hub: MemoryHub) -> None:
        self._hub = hub
        self._own: list[str] = []

    async def start(self) -> None: ...

    async def serve(self, route: Route) -> str:
        self._hub.routes[route.path] = route
        self._own.append(route.path)
        return ""

    def channel(self, instance: Instance) -> MemoryChannel:
        return MemoryChannel(self._hub, instance_path(instance))

    def link_rows(self) -> tuple[dict[str, Any], ...]:
        return ()

    async def close(self) -> None:
        for path in self._own:
            self._hub.routes.pop(path).kill()
        self._own.clear()


class MemoryChannel:
    def __init__(self, hub: MemoryHub, path: str) -> None:
        self._hub = hub
        self._path = path

    @property
    def ready(self) -> bool:
        return self._path in self._hub.routes

    @property
    def draining(self) -> bool:
        route = self._hub.routes.get(self._path)
        return route is not None and not route.open

    @property
    def announced_end(self) -> bool:
        return not self.ready or self.draining

    @property
    def unheard(self) -> bool:
        return False

    async def open(self) -> None:
        if not self.ready:
            raise CannotConnect(f"{self._path} is not served in this process")

    def send(
        self, request: Any, context: Context, sink: Sink, *, item_type: Any = Any, columnar: bool = False
    ) -> CancelStream:
        route = self._hub.routes.get(self._path)
        if route is None:
            raise CannotConnect(f"{self._path} is not served in this process")
        if context.is_killed():
            sink.fail(Cancelled("request was cancelled before it was sent"))
            return nothing_to_cancel
        try:
            request = as_received(request, route.request_type)
        except (msgspec.ValidationError, TypeError, ValueError, RecursionError) as error:
            sink.fail(InvalidArgument(f"request does not fit {self._path}: {error}"))
            return nothing_to_cancel
        there = context.received()
        if context.claim is not None and context.claim.act != "begin":
            # Nothing is kept inside one process: caller and worker end together.
            sink.fail(NotFound("streams are not kept in one process"))
            return nothing_to_cancel
        outlet = MemoryOutlet(sink, route, there, item_type=item_type, columnar=columnar)
        cancel = outlet.follow(context)
        route.start(request, there, outlet)
        return cancel


class MemoryOutlet:
    """Forwards each call to the reader's sink until the reader is gone."""

    __slots__ = ("_context", "_forget", "_item_type", "_route", "_sink", "columnar", "done")

    def __init__(self, sink: Sink, route: Route, context: Context, *, item_type: Any, columnar: bool) -> None:
        self._sink: Sink | None = sink
        self._route = route
        self._context = context
        self._item_type = item_type
        self._forget: Callable[[], None] = lambda: None
        self.columnar = columnar
        self.done = False

    def follow(self, caller: Context) -> CancelStream:
        """Stop or kill the handler's context when the caller's is, as a cancel frame does over a wire."""

        def stopped(killed: bool) -> None:
            if not killed:
                self._context.stop_for_caller(kill=False)
                return
            sink, self._sink = self._sink, None
            self._context.stop_for_caller(kill=True)
            if sink:
                sink.fail(Cancelled("request was cancelled"))

        self._forget = caller.on_stop(stopped)
        return stopped

    def tokens(self, ids: list[int]) -> None:
        if self._sink and not self.done:
            if self.columnar:
                self._sink.tokens(ids)
            else:
                self.item({"token_ids": ids})

    def item(self, value: Any) -> None:
        if self._sink and not self.done:
            self._sink.item(as_received(value, self._item_type))

    def end(self) -> None:
        sink = self._finish()
        if sink:
            sink.end()

    def fail(self, error: DynamoException) -> None:
        sink = self._finish(error)
        if sink:
            sink.fail(error)

    def _finish(self, error: DynamoException | None = None) -> Sink | None:
        if self.done:
            return None
        self.done = True
        self._forget()
        sink, self._sink = self._sink, None
        self._route.finished(self._context, error)
        return sink

    async def writable(self) -> None: ...


def as_received(value: Any, kind: Any) -> Any:
    """The value as it would arrive over a wire: plain data, or the struct that the reader decodes."""
    if kind is not Any and isinstance(value, kind):
        return value
    plain = msgspec.to_builtins(value, builtin_types=(bytes, bytearray), enc_hook=as_builtin)
    return plain if kind is Any else msgspec.convert(plain, kind)
