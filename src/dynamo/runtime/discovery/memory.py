"""Discovery inside one process: the backend of `dynamo-run in=… out=…` and the peer that tests use."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from dynamo.runtime.discovery.base import Change, DiscoveryError, check_key
from dynamo.runtime.discovery.view import View, Watch


class MemoryStore:
    """The records that several `MemoryDiscovery` objects of one event loop share."""

    def __init__(self) -> None:
        self.view = View()
        self.owners: dict[str, MemoryDiscovery] = {}


class MemoryDiscovery:
    """One participant of a `MemoryStore`, with a lease of its own."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._watches: set[Watch] = set()
        self._closed = False

    async def start(self) -> None:
        self._reject_if_closed()

    async def put(self, key: str, value: bytes) -> None:
        check_key(key)
        self._reject_if_closed()
        self._store.owners[key] = self
        self._store.view.put(key, value)

    async def delete(self, key: str) -> None:
        if self._store.owners.get(key) is self:
            del self._store.owners[key]
            self._store.view.delete(key)

    async def get_prefix(self, prefix: str) -> dict[str, bytes]:
        self._reject_if_closed()
        return self._store.view.prefixed(prefix)

    async def watch(self, prefix: str) -> AsyncGenerator[Change, None]:
        self._reject_if_closed()
        watch = self._store.view.watch(prefix)
        self._watches.add(watch)
        try:
            async with aclosing(watch.changes()) as changes:
                async for change in changes:
                    yield change
        finally:
            self._watches.discard(watch)

    async def close(self) -> None:
        self._closed = True
        for key in [key for key, owner in self._store.owners.items() if owner is self]:
            await self.delete(key)
        for watch in self._watches:
            watch.end()

    def _reject_if_closed(self) -> None:
        if self._closed:
            raise DiscoveryError("this discovery is closed")
