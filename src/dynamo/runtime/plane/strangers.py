"""Connections that have not said hello yet: few, and not for long."""

from __future__ import annotations

import asyncio
from functools import partial

from dynamo.protocols.errors import ProtocolError
from dynamo.runtime.plane.server_link import ServerLink

MAX_STRANGERS = 256
HELLO_SECONDS = 10.0


class Strangers:
    def __init__(self, limit: int = MAX_STRANGERS, patience: float = HELLO_SECONDS) -> None:
        self._limit = limit
        self._patience = patience
        self._deadlines: dict[ServerLink, asyncio.TimerHandle] = {}
        """In the order in which they came."""

    def add(self, link: ServerLink) -> None:
        """Close the connection unless it says hello in time. The oldest is closed where there are too many."""
        if len(self._deadlines) >= self._limit:
            next(iter(self._deadlines)).lose(ProtocolError("too many connections have not said hello"))
        late = ProtocolError(f"no hello within {self._patience:g} s")
        loop = asyncio.get_running_loop()
        self._deadlines[link] = loop.call_later(self._patience, link.lose, late)
        forget = partial(self._forget, link)
        link.when_greeted(forget)
        link.when_lost(forget)

    def _forget(self, link: ServerLink) -> None:
        if deadline := self._deadlines.pop(link, None):
            deadline.cancel()
