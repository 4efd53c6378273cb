"""A client of one endpoint: knows its living instances and sends requests to one of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from dynamo.protocols import instance as records
from dynamo.protocols.errors import DynamoException, InvalidArgument, Unavailable, Unknown
from dynamo.protocols.instance import Instance
from dynamo.runtime.annotated import Annotated
from dynamo.runtime.context import Context
from dynamo.runtime.discovery import Delete, Discovery, Put, Synced
from dynamo.runtime.names import INSTANCES, EndpointId, split_key
from dynamo.runtime.plane.base import Channel, RequestPlane

log = logging.getLogger(__name__)

INHIBITED_SECONDS = 5.0
"""How long an instance that failed is passed over, unless discovery says something new about it first."""


class Client:
    """Follows discovery from `start` to `close`. During an outage of discovery the last known view stays in use."""

    def __init__(self, endpoint: EndpointId, discovery: Discovery, plane: RequestPlane) -> None:
        self.endpoint = endpoint
        self._discovery = discovery
        self._plane = plane
        self._instances: dict[int, Instance] = {}
        self._channels: dict[int, Channel] = {}
        self._inhibited: dict[int, float] = {}
        self._changed = asyncio.Event()
        self._synced = asyncio.Event()
        self._watcher: asyncio.Task[None] | None = None
        self._listeners: list[Callable[[], None]] = []
        self._turn = 0

    async def start(self) -> Client:
        self._watcher = asyncio.create_task(self._watch())
        await self._synced.wait()
        return self

    async def close(self) -> None:
        if self._watcher:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)

    async def _watch(self) -> None:
        prefix = f"{INSTANCES}{self.endpoint.path}/"
        async with contextlib.aclosing(self._discovery.watch(prefix)) as changes:
            async for change in changes:
                match change:
                    case Put(key, value):
                        self._put(key, value)
                    case Delete(key):
                        self._delete(key)
                    case Synced():
                        self._synced.set()

    def _put(self, key: str, value: bytes) -> None:
        try:
            endpoint, instance_id = split_key(key)
            instance = records.decode(value)
            if (endpoint, instance_id) != (self.endpoint, instance.instance_id):
                raise ValueError("the record does not fit its key")
            if instance.transport != self._plane.transport:
                raise ValueError(f"it is served over {instance.transport}, this process uses {self._plane.transport}")
        except ValueError as error:
            log.warning("ignoring the instance record %s: %s", key, error)
            return
        self._instances[instance_id] = instance
        self._channels[instance_id] = self._plane.channel(instance)
        self._inhibited.pop(instance_id, None)
        self._tell()

    def _delete(self, key: str) -> None:
        with contextlib.suppress(ValueError):
            _, instance_id = split_key(key)
            self._instances.pop(instance_id, None)
            self._channels.pop(instance_id, None)
            self._inhibited.pop(instance_id, None)
            self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed.clear()
        for listener in tuple(self._listeners):
            listener()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener()` whenever an instance appears, changes or disappears."""
        self._listeners.append(listener)

    def instance_ids(self) -> list[int]:
        return list(self._instances)

    def instances(self) -> list[Instance]:
        return list(self._instances.values())

    async def wait_for_instances(self) -> list[int]:
        while not self._instances:
            await self._changed.wait()
        return self.instance_ids()

    def routable(self, avoid: Sequence[int] = ()) -> list[int]:
        """The instances to choose from: living, not draining, not failed a moment ago, not in `avoid`.

        When everything failed a moment ago, trying again beats refusing.
        """
        living = [
            instance_id
            for instance_id, channel in self._channels.items()
            if instance_id not in avoid and not channel.draining
        ]
        if not self._inhibited:
            return living
        now = asyncio.get_running_loop().time()
        healthy = [instance_id for instance_id in living if self._inhibited.get(instance_id, 0) < now]
        return healthy or living

    def inhibit(self, instance_id: int) -> None:
        self._inhibited[instance_id] = asyncio.get_running_loop().time() + INHIBITED_SECONDS

    def channel(self, instance_id: int) -> Channel:
        """The way to one instance; raises Unavailable when discovery does not know it."""
        channel = self._channels.get(instance_id)
        if channel is None:
            raise Unavailable(f"no instance {instance_id} of {self.endpoint}")
        return channel

    def next_in_turn(self, routable: Sequence[int]) -> int:
        self._turn += 1
        return routable[self._turn % len(routable)]

    async def open(self, choose: Callable[[Sequence[int]], int]) -> tuple[int, Channel]:
        """A connected instance: one that cannot be reached is passed over for the next, until none is left."""
        failed: list[int] = []
        last: DynamoException | None = None
        while routable := self.routable(failed):
            instance_id = choose(routable)
            channel = self.channel(instance_id)
            if not channel.ready:
                try:
                    await channel.open()
                except DynamoException as error:
                    log.warning("instance %x of %s: %s", instance_id, self.endpoint, error)
                    self.inhibit(instance_id)
                    failed.append(instance_id)
                    last = error
                    continue
            return instance_id, channel
        raise last or Unavailable(f"no instance of {self.endpoint} is there")

    async def random(self, request: Any, annotated: bool = True, context: Context | None = None) -> Stream:
        _, channel = await self.open(random.choice)
        return self._send(channel, request, annotated, context)

    async def round_robin(self, request: Any, annotated: bool = True, context: Context | None = None) -> Stream:
        _, channel = await self.open(self.next_in_turn)
        return self._send(channel, request, annotated, context)

    async def generate(self, request: Any, annotated: bool = True, context: Context | None = None) -> Stream:
        return await self.round_robin(request, annotated, context)

    async def direct(
        self, request: Any, instance_id: int, annotated: bool = True, context: Context | None = None
    ) -> Stream:
        channel = self.channel(instance_id)
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
    """What comes back, as an async iterator. `aclose`, or letting go of it unread, cancels at the worker."""

    def __init__(self, inbox: Inbox, *, annotated: bool) -> None:
        self._inbox = inbox
        self._annotated = annotated
        self._loop = asyncio.get_running_loop()

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Any:
        envelope = await self._inbox.next()
        if self._annotated:
            return envelope
        if envelope.exception:
            raise envelope.exception
        if envelope.is_error():
            raise Unknown(envelope.error or "the worker sent an error")
        return envelope.data()

    async def aclose(self) -> None:
        self._inbox.context.kill()

    def __del__(self) -> None:
        if not self._inbox.done and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._inbox.context.kill)


class Inbox:
    """The sink below a `Stream`: what arrived and was not read yet."""

    def __init__(self, caller: Context | None) -> None:
        self.context = caller.detached(caller.id()) if caller else Context()
        self.done = False
        self._items: deque[Annotated] = deque()
        self._arrived = asyncio.Event()
        self._unlink: Callable[[], None] = lambda: None
        if caller:
            self._unlink = caller.on_stop(self._caller_stopped)
            if caller.is_stopped():
                self._caller_stopped(caller.is_killed())

    def _caller_stopped(self, killed: bool) -> None:
        if killed:
            self.context.kill()
        else:
            self.context.stop_generating()

    def tokens(self, ids: list[int]) -> None:
        self.item({"token_ids": ids})

    def item(self, value: Any) -> None:
        self._items.append(Annotated.of(value))
        self._arrived.set()

    def end(self) -> None:
        self.done = True
        self._unlink()
        self._arrived.set()

    def fail(self, error: DynamoException) -> None:
        self._items.append(Annotated.failed(error))
        self.end()

    async def next(self) -> Annotated:
        while not self._items:
            if self.done:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        return self._items.popleft()
