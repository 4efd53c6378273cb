"""Events inside one process: publishers and subscribers share a bus."""

from __future__ import annotations

import asyncio
from collections import deque

from dynamo.runtime.events.base import Callback, Subscribers, Subscription, check_subject

CAPACITY = 100_000
"""Events that may wait for delivery; further ones are lost, as they would be on a network."""


class MemoryBus:
    """What the `MemoryEventPlane` objects of one event loop share."""

    def __init__(self) -> None:
        self.planes: dict[MemoryEventPlane, None] = {}
        """Those with subscribers, in order."""
        self._waiting: deque[tuple[str, bytes]] = deque()

    def publish(self, subject: str, data: bytes) -> None:
        if not self._waiting:
            # As on other planes, a subscriber must not run inside `publish`.
            asyncio.get_running_loop().call_soon(self._deliver)
        if len(self._waiting) < CAPACITY:
            self._waiting.append((subject, data))

    def _deliver(self) -> None:
        events, self._waiting = self._waiting, deque()
        for subject, data in events:
            for plane in tuple(self.planes):
                plane.subscribers.deliver(subject, data)


class MemoryEventPlane:
    def __init__(self, bus: MemoryBus) -> None:
        self.subscribers = Subscribers()
        self._bus = bus
        self._closed = False

    async def start(self) -> None:
        pass

    async def announce(self) -> None:
        pass

    def publish(self, subject: str, data: bytes) -> None:
        check_subject(subject)
        if not self._closed:
            self._bus.publish(subject, data)

    async def subscribe(self, subject: str, callback: Callback) -> Subscription:
        # A process may hold thousands of workers that only publish.
        self._bus.planes[self] = None
        return self.subscribers.add(subject, callback)

    async def close(self) -> None:
        self._closed = True
        self._bus.planes.pop(self, None)
        self.subscribers.clear()
