"""A process's copy of the store's records, and the watches on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping

from dynamo.runtime.discovery.base import Change, Delete, Put, Synced


class View:
    """Live records by key; every change is passed to the watches of its prefix."""

    def __init__(self) -> None:
        self.records: dict[str, bytes] = {}
        self._watches: set[Watch] = set()

    @property
    def watched(self) -> bool:
        return bool(self._watches)

    def put(self, key: str, value: bytes) -> None:
        if self.records.get(key) != value:
            self.records[key] = value
            self._notify(key)

    def delete(self, key: str) -> None:
        if self.records.pop(key, None) is not None:
            self._notify(key)

    def replace(self, records: Mapping[str, bytes]) -> None:
        for key in self.records.keys() - records.keys():
            self.delete(key)
        for key, value in records.items():
            self.put(key, value)

    def prefixed(self, prefix: str) -> dict[str, bytes]:
        return {key: value for key, value in self.records.items() if key.startswith(prefix)}

    def watch(self, prefix: str) -> Watch:
        watch = Watch(self, prefix)
        self._watches.add(watch)
        return watch

    def end_watches(self) -> None:
        for watch in self._watches:
            watch.end()

    def forget(self, watch: Watch) -> None:
        self._watches.discard(watch)

    def _notify(self, key: str) -> None:
        for watch in self._watches:
            watch.changed(key)


class Watch:
    """One watch of a view. It remembers which keys changed, not each change, so a slow reader costs no memory."""

    def __init__(self, view: View, prefix: str) -> None:
        self._view = view
        self._prefix = prefix
        self._changed = dict.fromkeys(view.prefixed(prefix))
        self._wake = asyncio.Event()
        self._ended = False

    def changed(self, key: str) -> None:
        if key.startswith(self._prefix):
            self._changed[key] = None
            self._wake.set()

    def end(self) -> None:
        self._ended = True
        self._wake.set()

    async def changes(self) -> AsyncGenerator[Change, None]:
        reported: dict[str, bytes] = {}
        synced = False
        try:
            while not self._ended:
                self._wake.clear()
                changed, self._changed = self._changed, {}
                for key in changed:
                    value = self._view.records.get(key)
                    if value is None:
                        if reported.pop(key, None) is not None:
                            yield Delete(key)
                    elif reported.get(key) != value:
                        reported[key] = value
                        yield Put(key, value)
                if not synced:
                    synced = True
                    yield Synced()
                await self._wake.wait()
        finally:
            self._view.forget(self)
