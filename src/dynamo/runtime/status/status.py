"""The state of a worker process: its endpoints, whether they are ready, and for how long it has run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from dynamo.runtime.instruments import MetricFamily
from dynamo.runtime.status.config import StatusConfig
from dynamo.runtime.status.counts import component_metrics
from dynamo.runtime.status.served import ServedEndpoint

if TYPE_CHECKING:
    from dynamo.runtime.status.server import StatusServer


class Status:
    """Of all runtimes of one process. Told over HTTP from `start` to `close`."""

    def __init__(self, config: StatusConfig) -> None:
        self.config = config
        self._started = time.monotonic()
        self._endpoints: list[ServedEndpoint] = []
        self._told: bool | None = None
        self._server: StatusServer | None = None

    async def start(self) -> None:
        """Raises StatusError, which names the fix."""
        # Only here is an HTTP server needed at all.
        from dynamo.runtime.status.server import StatusServer

        self._server = StatusServer(self)
        await self._server.start()

    async def close(self) -> None:
        if self._server:
            await self._server.close()

    def add(self, endpoint: ServedEndpoint) -> None:
        self._endpoints.append(endpoint)

    def tell(self, ready: bool) -> None:
        """What the program itself thinks: without a required endpoint that is what counts; its no counts always."""
        self._told = ready

    @property
    def uptime(self) -> float:
        return time.monotonic() - self._started

    @property
    def ready(self) -> bool:
        if self._told is False:
            return False
        endpoints = self.endpoints()
        required = {*self.config.required, *(served.name for served in self._endpoints if served.required)}
        if required:
            return all(endpoints[name] for name in required)
        if self._told is not None:
            return self._told
        return all(endpoints.values()) if endpoints else self.config.starts_ready

    def endpoints(self) -> dict[str, bool]:
        """By name whether it is ready: at all instances in this process, and also if it must be and is not there."""
        ready = dict.fromkeys(self.config.required, False)
        names = {served.name for served in self._endpoints}
        return ready | {name: all(one.ready for one in self._endpoints if one.name == name) for name in names}

    def metrics(self) -> list[MetricFamily]:
        return list(component_metrics([served.counts for served in self._endpoints], self.uptime))
