"""The state of a worker process: its endpoints, whether they are ready, and its uptime."""

from __future__ import annotations

import time

from dynamo.runtime.instruments import MetricFamily
from dynamo.runtime.status.config import StatusConfig
from dynamo.runtime.status.counts import component_metrics
from dynamo.runtime.status.served import ServedEndpoint


class Status:
    """Covers all runtimes of one process."""

    def __init__(self, config: StatusConfig) -> None:
        self.config = config
        self._started = time.monotonic()
        self._endpoints: list[ServedEndpoint] = []
        self._program_health: bool | None = None

    def add(self, endpoint: ServedEndpoint) -> None:
        self._endpoints.append(endpoint)

    def set_program_health(self, ready: bool) -> None:
        """The health the program reports: False always counts, True only if no endpoint is required."""
        self._program_health = ready

    @property
    def uptime(self) -> float:
        return time.monotonic() - self._started

    @property
    def ready(self) -> bool:
        if self._program_health is False:
            return False
        endpoints = self.endpoints()
        required = {*self.config.required, *(served.name for served in self._endpoints if served.required)}
        if required:
            return all(endpoints[name] for name in required)
        if self._program_health is not None:
            return self._program_health
        if all(served.auxiliary for served in self._endpoints):
            return self.config.starts_ready
        return all(endpoints.values())

    def endpoints(self) -> dict[str, bool]:
        """Every endpoint served or required, by name, and whether all its instances in this process are ready."""
        ready = dict.fromkeys(self.config.required, False)
        names = {served.name for served in self._endpoints}
        return ready | {name: all(one.ready for one in self._endpoints if one.name == name) for name in names}

    def metrics(self) -> list[MetricFamily]:
        return list(component_metrics([served.counts for served in self._endpoints], self.uptime))
