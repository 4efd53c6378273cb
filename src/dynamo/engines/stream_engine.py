"""What engines with an owner thread and one `StreamRequest` per request share: who is running, death and the end."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from dynamo.engines.base import DeathListener
from dynamo.engines.owner_thread import OwnerThread
from dynamo.engines.stream_request import StreamRequest
from dynamo.protocols.card import ModelInput
from dynamo.protocols.errors import EngineShutdown

log = logging.getLogger(__name__)


class StreamEngine:
    model_input = ModelInput.Tokens

    def __init__(self, name: str, owner: OwnerThread[Any]) -> None:
        self._name = name
        self._owner = owner
        self._llm: Any = None
        self._requests: set[StreamRequest] = set()
        self._on_death: DeathListener | None = None
        self._death: str | None = None
        self._closed = False

    @property
    def _runs(self) -> bool:
        return self._llm is not None and not self._closed and self._death is None

    def quiet(self) -> bool:
        return not self._requests

    def on_death(self, listener: DeathListener) -> None:
        self._on_death = listener
        if self._death is not None:
            listener(self._death)

    def _died(self, reason: str) -> None:
        if not self._runs:  # a start that fails says so by itself
            return
        self._death = reason
        log.error("%s died: %s", self._name, reason)
        self._fail_all("the engine died")
        if self._on_death is not None:
            self._on_death(reason)

    def _fail_all(self, reason: str) -> None:
        for running in list(self._requests):
            running.fail(EngineShutdown(reason))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        requests = tuple(self._requests)
        self._fail_all("the engine was closed")
        await asyncio.gather(*(request.finished() for request in requests))
        await self._release()

    async def _release(self) -> None:
        """End what reads from the engine, then the engine itself."""
        await self._owner.close()
