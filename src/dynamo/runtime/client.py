"""A client of one endpoint: follows its live instances and sends requests to them."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from msgspec import structs

from dynamo.protocols.errors import Cancelled, DynamoException, InvalidArgument
from dynamo.protocols.instance import Instance, ListedTransport
from dynamo.runtime.annotated import Annotated
from dynamo.runtime.context import Context
from dynamo.runtime.discovery import Discovery
from dynamo.runtime.instances import InstanceSet
from dynamo.runtime.membership import Member, Membership
from dynamo.runtime.names import EndpointId
from dynamo.runtime.plane.base import Channel, RequestPlane


class Client:
    """Follows discovery from `start` to `close`. During an outage of discovery the last known view stays in use."""

    def __init__(self, endpoint: EndpointId, discovery: Discovery, plane: RequestPlane) -> None:
        self.endpoint = endpoint
        self.instance_set = InstanceSet(str(endpoint), plane)
        self._members = Membership(discovery, self._changed, path=endpoint.path)
        self._turn = 0

    async def start(self) -> Client:
        await self._members.start()
        return self

    async def close(self) -> None:
        await self._members.close()
        await self.instance_set.close()

    def _changed(self, _: Member, after: Member) -> None:
        self.instance_set.update(after.instance_id, after.instance)

    def instance_ids(self) -> list[int]:
        return self.instance_set.ids()

    def instances(self) -> list[Instance]:
        """The live instances; the `transport` of each also has a `kind` and an `address`."""
        known = self.instance_set.all()
        return [structs.replace(instance, transport=ListedTransport.of(instance)) for instance in known]

    async def wait_for_instances(self) -> list[int]:
        return await self.instance_set.wait()

    def _next_in_turn(self, routable: Sequence[int]) -> int:
        self._turn += 1
        return routable[self._turn % len(routable)]

    async def random(self, request: Any, annotated: bool = True, context: Context | None = None) -> Stream:
        return self._send(await self.instance_set.open(random.choice), request, annotated, context)

    async def round_robin(self, request: Any, annotated: bool = True, context: Context | None = None) -> Stream:
        return self._send(await self.instance_set.open(self._next_in_turn), request, annotated, context)

    async def generate(self, request: Any, annotated: bool = True, context: Context | None = None) -> Stream:
        return await self.round_robin(request, annotated, context)

    async def direct(
        self, request: Any, instance_id: int, annotated: bool = True, context: Context | None = None
    ) -> Stream:
        channel = self.instance_set.channel(instance_id)
        if not channel.ready:
            await channel.open()
        return self._send(channel, request, annotated, context)

    def _send(self, channel: Channel, request: Any, annotated: bool, context: Context | None) -> Stream:
        if context is not None and not isinstance(context, Context):
            raise InvalidArgument(f"context must be a dynamo.runtime.Context, not {type(context).__name__}")
        inbox = Inbox(context)
        channel.send(request, inbox.context, inbox)
        return Stream(inbox, annotated=annotated)


class Stream(AsyncIterator[Any]):
    """The response as an async iterator. Closing it, or dropping it unread, cancels the request at the worker.

    An error of the worker is raised where it stands in the stream, as its own type and as a ValueError. After the
    caller stopped its context the stream just ends; stopped before it was sent, it has no items.
    """

    def __init__(self, inbox: Inbox, *, annotated: bool) -> None:
        self._inbox = inbox
        self._annotated = annotated
        self._loop = asyncio.get_running_loop()

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Any:
        while True:
            envelope = await self._inbox.next()
            if envelope.is_error():
                raise raisable(envelope.failure())
            if self._annotated:
                return envelope
            if not envelope.is_bare_event():
                return envelope.data()

    async def aclose(self) -> None:
        self._inbox.context.kill()

    def __del__(self) -> None:
        if not self._inbox.done and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._inbox.context.kill)


class Inbox:
    """The sink that a `Stream` reads from: holds the items that have arrived and are not read yet."""

    def __init__(self, caller: Context | None = None) -> None:
        self.context = caller.detached(caller.id()) if caller else Context()
        self.done = False
        self._caller = caller
        self._unwanted = caller is not None and caller.is_stopped()
        self._items: deque[Annotated] = deque()
        self._arrived = asyncio.Event()
        self._unlink: Callable[[], None] = lambda: None
        if caller:
            self._unlink = caller.on_stop(self._caller_stopped)

    def _caller_stopped(self, killed: bool) -> None:
        if killed:
            self.context.kill()
        else:
            self.context.stop_generating()

    def tokens(self, ids: list[int]) -> None:
        self.item({"token_ids": ids})

    def item(self, value: Any) -> None:
        if not self._unwanted:
            self._items.append(Annotated.of(value))
            self._arrived.set()

    def end(self) -> None:
        self.done = True
        self._unlink()
        self._arrived.set()

    def fail(self, error: DynamoException) -> None:
        asked = self._caller is not None and self._caller.is_stopped() and not self._caller.is_killed()
        if not (asked and isinstance(error, Cancelled)):
            self._items.append(Annotated.failed(error))
        self.end()

    async def next(self) -> Annotated:
        while not self._items:
            if self.done:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        return self._items.popleft()


def raisable(error: DynamoException) -> DynamoException:
    """The same error as a ValueError too, which is what programs written for ai-dynamo catch."""
    kind = _also_value_error(type(error))
    raised = kind.__new__(kind, *error.args)
    raised.__dict__.update(error.__dict__)
    return raised


def _also_value_error(kind: type[DynamoException]) -> type[DynamoException]:
    if issubclass(kind, ValueError):
        return kind
    if kind not in _VALUE_ERRORS:
        _VALUE_ERRORS[kind] = type(kind.__name__, (kind, ValueError), {"__module__": kind.__module__})
    return _VALUE_ERRORS[kind]


_VALUE_ERRORS: dict[type[DynamoException], type[DynamoException]] = {}
