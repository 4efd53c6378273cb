"""The client's side of a wire: one link per address, shared by every channel that leads there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from dynamo.protocols.errors import CannotConnect, Disconnected
from dynamo.runtime.context import Context
from dynamo.runtime.plane.base import CancelStream
from dynamo.runtime.plane.client_link import ClientLink
from dynamo.runtime.stream import Sink

MOST_FAREWELLS = 1024


class LinkPool:
    def __init__(self, dial: Callable[[str], Coroutine[Any, Any, ClientLink]]) -> None:
        self._dial = dial
        self._links: dict[str, ClientLink] = {}
        self._dialling: dict[str, asyncio.Task[ClientLink]] = {}
        self.farewells: dict[str, None] = {}
        """Paths that were announced to end on connections that are gone: the last ones."""

    def link(self, address: str) -> ClientLink | None:
        link = self._links.get(address)
        return None if link is None or link.lost else link

    async def connect(self, address: str) -> None:
        """Connect once for all callers that wait, even if some of them give up; raises CannotConnect."""
        if self.link(address):
            return
        task = self._dialling.get(address)
        if task is None:
            task = self._dialling[address] = asyncio.create_task(self._dial_and_keep(address))
            task.add_done_callback(lambda _: self._dialling.pop(address, None))
        await asyncio.shield(task)

    async def _dial_and_keep(self, address: str) -> ClientLink:
        link = self._links[address] = await self._dial(address)
        link.when_lost(lambda: self._forget(address, link))
        return link

    def _forget(self, address: str, link: ClientLink) -> None:
        self.farewells |= dict.fromkeys(link.draining)
        while len(self.farewells) > MOST_FAREWELLS:
            del self.farewells[next(iter(self.farewells))]
        if self._links.get(address) is link:
            del self._links[address]

    async def close(self) -> None:
        for task in tuple(self._dialling.values()):
            task.cancel()
        await asyncio.gather(*self._dialling.values(), return_exceptions=True)
        for link in tuple(self._links.values()):
            link.lose(Disconnected("the runtime was shut down"))


class LinkChannel:
    """The channel to one served path over a pooled link."""

    __slots__ = ("_address", "_path", "_pool")

    def __init__(self, pool: LinkPool, address: str, path: str) -> None:
        self._pool = pool
        self._address = address
        self._path = path

    @property
    def ready(self) -> bool:
        return self._pool.link(self._address) is not None

    @property
    def draining(self) -> bool:
        link = self._pool.link(self._address)
        return link is not None and self._path in link.draining

    @property
    def announced_end(self) -> bool:
        return self.draining or self._path in self._pool.farewells

    @property
    def unheard(self) -> bool:
        link = self._pool.link(self._address)
        return link is not None and link.unheard

    async def open(self) -> None:
        await self._pool.connect(self._address)

    def send(
        self, request: Any, context: Context, sink: Sink, *, item_type: Any = Any, columnar: bool = False
    ) -> CancelStream:
        link = self._pool.link(self._address)
        if link is None:
            raise CannotConnect(f"there is no connection to {self._address}")
        return link.request(self._path, request, context, sink, item_type=item_type, columnar=columnar)
