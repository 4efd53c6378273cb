"""One served endpoint in the status of its process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from dynamo.runtime.status.canary import Canary
from dynamo.runtime.status.config import StatusConfig
from dynamo.runtime.status.counts import EndpointCounts
from dynamo.runtime.stream import Handler

OnHealth = Callable[[bool], Awaitable[None]]


class ServedEndpoint:
    """Ready from `begin` to `end`; if health checks are enabled, only while it passes them."""

    def __init__(
        self,
        name: str,
        labels: dict[str, str],
        handler: Handler,
        request_type: Any,
        payload: Any,
        config: StatusConfig,
        *,
        auxiliary: bool = False,
    ) -> None:
        self.name = name
        self.auxiliary = auxiliary
        """Supports another endpoint; does not make the process ready on its own."""
        self.counts = EndpointCounts(labels)
        self.ready = False
        self.required = payload is not None or name in config.required
        """The process is ready only while this endpoint is."""
        self._canary: Canary | None = None
        self._checking: asyncio.Task[None] | None = None
        if payload is not None and config.probes:
            self._canary = Canary(name, handler, request_type, payload, self.counts, config)

    def begin(self, on_change: OnHealth) -> None:
        """The endpoint is registered: others can find it. `on_change` is called when it fails its checks or recovers.

        It was registered as healthy.
        """
        if self._canary:
            self._checking = asyncio.create_task(self._check(self._canary, on_change))
        else:
            self.ready = True

    async def _check(self, canary: Canary, on_change: OnHealth) -> None:
        published = True
        async for ready in canary.results():
            self.ready = ready
            if ready is not published:
                await on_change(ready)
                published = ready

    async def end(self) -> None:
        """The endpoint is leaving: it takes no new requests."""
        if self._checking:
            self._checking.cancel()
            await asyncio.gather(self._checking, return_exceptions=True)
        self.ready = False
