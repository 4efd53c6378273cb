"""What all handlers share; those of APIs know the part that is a `Host`."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web

from dynamo.api.host import Host, KeptState
from dynamo.api.mcp.servers import McpServer
from dynamo.frontend.callers import Callers
from dynamo.frontend.fleet.planner_feed import PlannerFeed
from dynamo.frontend.fleet.prefix_table import PrefixTable
from dynamo.frontend.fleet.recorder import FleetRecorder
from dynamo.frontend.fleet.stream import VIEWING, FleetStream
from dynamo.frontend.fleet.view import FleetView
from dynamo.frontend.measure.loop_delay import LoopDelay
from dynamo.frontend.measure.metrics import adapter_gauges
from dynamo.frontend.measure.router_metrics import (
    overhead_metrics,
    queue_metrics,
    request_metrics,
    routers_of,
    split_metrics,
)
from dynamo.frontend.measure.running import RunningRequests
from dynamo.frontend.measure.worker_metrics import ready_gauge, waiting_gauge, worker_gauges
from dynamo.frontend.siblings import Siblings
from dynamo.router.families import router_families
from dynamo.runtime.events import EventPlane
from dynamo.runtime.inspection import Inspection
from dynamo.runtime.metrics import MetricFamily
from dynamo.serving.models import Models


class Frontend(Host):
    state: KeptState
    """Opened when the server starts."""

    def __init__(
        self,
        models: Models,
        requests: RunningRequests,
        loop_delay: LoopDelay,
        callers: Callers,
        inspection: Inspection,
        events: EventPlane,
        siblings: Siblings | None = None,
        *,
        strips_preamble: bool = False,
        mcp: Mapping[str, McpServer] | None = None,
    ) -> None:
        self.callers = callers
        self.inspection = inspection
        self.models = models
        self.requests = requests
        self.payloads = requests.payloads
        self.strips_preamble = strips_preamble
        self.mcp = mcp or {}
        self.started = False
        """All that requests need is there."""
        self.draining = False
        """New requests are refused, running ones finish."""
        self.recorder = FleetRecorder(models, requests)
        view = FleetView(models, requests, PlannerFeed(events), PrefixTable(models), self.recorder)
        self.fleet = FleetStream(view, lambda: self.draining)
        self._loop_delay = loop_delay
        self._siblings = siblings

    def may_administer(self, request: web.Request) -> bool:
        return self.callers.is_admin(request)

    def snapshot(self) -> list[MetricFamily]:
        """The metrics of this process."""
        self.requests.settle()
        served = self.models.served()
        metrics, router_id = self.requests.metrics, self.models.router_id
        by_stage, streams = self.requests.stages()
        if self.started:
            streams += self.state.batch_lines
        return [
            *metrics.snapshot(model.card for model in served),
            *metrics.stages.snapshot(by_stage, streams),
            *self._loop_delay.snapshot(metrics.prefix),
            ready_gauge(metrics.prefix, self.models.readiness()),
            waiting_gauge(metrics.prefix, self.models.waiting),
            *worker_gauges(metrics.prefix, self.models.versions(), metrics.last_requests),
            *adapter_gauges(metrics, served),
            *queue_metrics(metrics.prefix, served),
            *router_families(routers_of(router_id, served)),
            *request_metrics(router_id, served, metrics),
            *overhead_metrics(router_id, served),
            *split_metrics(router_id, served),
            VIEWING.family([({}, self.fleet)], f"{metrics.prefix}_"),
        ]

    async def families(self) -> list[MetricFamily]:
        """The metrics of all processes on this port."""
        return self.snapshot() if self._siblings is None else await self._siblings.all_families()

    async def set_thresholds(self, model: str, values: Mapping[str, int | float | None]) -> None:
        """Set thresholds in all processes on this port."""
        self.models.set_thresholds(model, values)
        if self._siblings:
            await self._siblings.sync_overrides()
