"""A client that reads a named stream, and goes on reading at another frontend when its own is gone."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Literal

import aiohttp
from msgspec import Struct

How = Literal["post", "get"]
PAUSE = 0.05
"""Seconds that a client waits between two connections."""


class Event(Struct):
    id: str
    text: str
    """All its other lines."""


class StreamClient:
    """One stream, whose events are collected in `events`, however many connections it takes."""

    def __init__(
        self, session: aiohttp.ClientSession, path: str, body: dict[str, Any], *, key: str = "", how: How = "post"
    ) -> None:
        self.name = str(uuid.uuid4())
        self.events: list[Event] = []
        self.connections = 0
        self._session = session
        self._path = path
        self._body = {**body, "stream": True}
        self._how = how
        self._headers = {"X-Dynamo-Stream": self.name}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self.ended = False
        self.error: str | None = None
        """The event that ended the last connection, if it was an error."""
        self.refused = 0

    def rename(self, name: str) -> None:
        self.name = self._headers["X-Dynamo-Stream"] = name

    async def open(self, url: str) -> aiohttp.ClientResponse:
        """Ask for the stream, from the beginning or after the last event."""
        headers = dict(self._headers)
        if self.events:
            headers["Last-Event-ID"] = self.events[-1].id
        elif self.connections:
            headers["X-Stainless-Retry-Count"] = str(self.connections)
        self.connections += 1
        if self._how == "get" and self.events:
            return await self._session.get(f"{url}/v1/streams/{self.name}", headers=headers)
        return await self._session.post(url + self._path, json=self._body, headers=headers)

    async def read(self, answer: aiohttp.ClientResponse, until: Callable[[], bool] = lambda: False) -> None:
        """Read until the end, an error, the loss of the connection, or until enough was read."""
        assert answer.status == 200, await answer.text()
        rest = b""
        async for data in answer.content.iter_any():
            *whole, rest = (rest + data).split(b"\n\n")
            for each in whole:
                self._add(each.decode())
            if until():
                return
        self.ended = self.error is None

    def _add(self, event: str) -> None:
        if event.startswith(":"):
            return
        if not event.startswith("id: "):
            self.error = self.error or event
            return
        id, _, text = event.partition("\n")
        self.events.append(Event(id.removeprefix("id: "), text))

    async def whole(self, urls: Sequence[str]) -> list[str]:
        """Read to the end, at one frontend after the other."""
        while not self.ended:
            await self.attempt(urls[self.connections % len(urls)])
            if not self.ended:
                await asyncio.sleep(PAUSE)
        return self.texts

    async def attempt(self, url: str) -> None:
        """Read on at this frontend, as far as it goes."""
        self.error = None
        try:
            async with await self.open(url) as answer:
                if answer.status in (502, 503):
                    self.refused += 1
                elif answer.status == 404 and answer.method == "GET":
                    # No worker keeps it any more: whoever is sent the request again computes it again.
                    self._how = "post"
                else:
                    await self.read(answer)
        except (aiohttp.ClientError, ConnectionError):
            pass

    @property
    def texts(self) -> list[str]:
        return [event.text for event in self.events]
