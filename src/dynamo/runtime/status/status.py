"""The state of a worker process: its endpoints, whether they are ready, and its uptime."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol

from dynamo.runtime.metrics import MetricFamily, Sample, merged
from dynamo.runtime.status.canary import Canary
from dynamo.runtime.status.config import StatusConfig
from dynamo.runtime.status.counts import EndpointCounts, component_metrics
from dynamo.runtime.stream import Handler

OnHealth = Callable[[bool], Awaitable[None]]


class EndpointStatus:
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


log = logging.getLogger(__name__)

Control = Callable[[dict[str, Any]], Awaitable[Any]]


class Registry(Protocol):
    """What `prometheus_client.CollectorRegistry` has."""

    def collect(self) -> Iterable[Any]: ...


class Status:
    """Covers all runtimes of one process."""

    def __init__(self, config: StatusConfig) -> None:
        self.config = config
        self._started = time.monotonic()
        self._endpoints: list[EndpointStatus] = []
        self._program_health: bool | None = None
        self._registries: list[tuple[Registry, dict[str, str]]] = []
        self._sources: list[Callable[[], Iterable[MetricFamily]]] = []
        self.controls: dict[str, Control] = {}
        """Operations of the engine, by name."""
        self.control_token: str | None = None
        """What callers from other machines must know; None: none of them may call a control."""

    def add(self, endpoint: EndpointStatus) -> None:
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
        required = {*self.config.required, *(endpoint.name for endpoint in self._endpoints if endpoint.required)}
        if required:
            return all(endpoints[name] for name in required)
        if self._program_health is not None:
            return self._program_health
        if all(endpoint.auxiliary for endpoint in self._endpoints):
            return self.config.starts_ready
        return all(endpoints.values())

    def endpoints(self) -> dict[str, bool]:
        """Every endpoint served or required, by name, and whether all its instances in this process are ready."""
        ready = dict.fromkeys(self.config.required, False)
        names = {endpoint.name for endpoint in self._endpoints}
        return ready | {name: all(one.ready for one in self._endpoints if one.name == name) for name in names}

    def add_registry(self, registry: Registry, labels: dict[str, str]) -> None:
        """Show the metrics of an engine too, with `labels` added to each sample."""
        self._registries.append((registry, labels))

    def add_families(self, source: Callable[[], Iterable[MetricFamily]]) -> None:
        """Show these metrics too; they are read on the event loop."""
        self._sources.append(source)

    def add_controls(self, controls: Mapping[str, Control], token: str | None) -> None:
        self.controls.update(controls)
        self.control_token = token

    @property
    def has_registries(self) -> bool:
        return bool(self._registries)

    def collected(self) -> list[MetricFamily]:
        """The metrics of the engines; may block, and may be called in a thread. One that fails is left out."""
        families: list[MetricFamily] = []
        for registry, labels in self._registries:
            try:
                for metric in registry.collect():
                    samples = [Sample(each.name, labels | each.labels, each.value) for each in metric.samples]
                    families.append(MetricFamily(metric.name, metric.documentation, metric.type, samples))
            except Exception:
                log.exception("the engine's metrics cannot be read")
        return merged(families)

    def metrics(self) -> list[MetricFamily]:
        own = component_metrics([endpoint.counts for endpoint in self._endpoints], self.uptime)
        return [*own, *merged(family for source in self._sources for family in source())]
