"""Which objects are to be looked at now."""

from __future__ import annotations

import asyncio

from dynamo.process.backoff import Backoff

Key = tuple[str, str]
_GATHER, _FIRST, _LAST = 0.1, 0.5, 30.0


class DueKeys:
    """Each key once, however often it is touched; those that failed come back later and later."""

    def __init__(self) -> None:
        self._due: dict[Key, None] = {}
        self._failing: dict[Key, Backoff] = {}
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._wake = asyncio.Event()

    def add(self, key: Key) -> None:
        self._due[key] = None
        self._wake.set()

    async def next(self) -> Key:
        """Changes that come together are gathered for a moment."""
        while not self._due:
            self._wake.clear()
            await self._wake.wait()
            await asyncio.sleep(_GATHER)
        key = next(iter(self._due))
        del self._due[key]
        return key

    def succeeded(self, key: Key) -> None:
        self._failing.pop(key, None)
        if timer := self._timers.pop(key, None):
            timer.cancel()

    def failed(self, key: Key) -> None:
        backoff = self._failing.get(key)
        if backoff is None:
            backoff = self._failing[key] = Backoff(_FIRST, _LAST)
        if timer := self._timers.pop(key, None):
            timer.cancel()
        self._timers[key] = asyncio.get_running_loop().call_later(backoff.pause(), self.add, key)
