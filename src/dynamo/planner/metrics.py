"""The planner's own metrics, under ai-dynamo's names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import get_args

from aiohttp import web

from dynamo.planner.capacity import LatencyLine, StepTime
from dynamo.planner.config import PlannerConfig, Role
from dynamo.planner.decide import TTFT_TAIL, ScalingDecision, State, itl_tail
from dynamo.planner.history import Observation
from dynamo.protocols.errors import StartError
from dynamo.runtime.metrics.exposition import CONTENT_TYPE, exposition
from dynamo.runtime.metrics.instruments import Family, MetricFamily, Number

_PREFIX = "dynamo_planner_"
_HELP = {
    "num_prefill_replicas": "Prefill workers that take requests",
    "num_decode_replicas": "Decode workers, or workers that do both, that take requests",
    "wanted_prefill_replicas": "Prefill workers that the last decision asks for",
    "wanted_decode_replicas": "Decode workers, or workers that do both, that the last decision asks for",
    "observed_request_rate": "Requests per second in the last interval",
    "observed_isl": "Mean prompt tokens of the requests that ended in the last interval",
    "observed_osl": "Mean output tokens of those requests",
    "observed_ttft_ms": "Mean time to the first token in the last interval",
    "observed_itl_ms": "Mean time between tokens in the last interval",
    "predicted_request_rate": "Requests per second that are expected when a worker started now would be ready",
    "predicted_isl": "Prompt tokens that are expected of a request",
    "predicted_osl": "Output tokens that are expected of a request",
    "engine_prefill_capacity_requests_per_second": "What one worker sustains within ttft_ms",
    "engine_decode_capacity_requests_per_second": "What one worker sustains within itl_ms",
    "engine_queued_prefill_tokens": "Prompt tokens without a first output",
    "sla_target_ttft_ms": "ttft_ms of the configuration",
    "sla_target_itl_ms": "itl_ms of the configuration",
    "gpu_hours": "GPU-hours of the workers since the planner started",
}


class PlannerMetrics:
    def __init__(self, config: PlannerConfig) -> None:
        self._config = config
        self._gauges = {name: Family(_PREFIX + name, text, "gauge", (), Number) for name, text in _HELP.items()}
        self._known = {name: False for name in _HELP}
        self._states = Family(
            _PREFIX + "scaling_decision", "1 for what was decided last", "gauge", ("role", "state"), Number
        )
        self._ticks = Family(_PREFIX + "ticks_total", "Decisions made", "counter", ("metrics",), Number)
        self._gpu_hours = 0.0
        self._set("sla_target_ttft_ms", config.ttft_ms)
        self._set("sla_target_itl_ms", config.itl_ms)

    def observe(self, seen: Observation, decision: ScalingDecision) -> None:
        traffic, forecast, config = seen.traffic, decision.forecast, self._config
        self._ticks.at("seen" if traffic else "missing").value += 1
        queued = 0.0
        for role in config.roles:
            pool, chosen = seen.pool(role), decision.pool(role)
            self._set(f"num_{role}_replicas", pool.serving if pool else None)
            self._set(f"wanted_{role}_replicas", chosen.workers if chosen else None)
            for state in get_args(State):
                self._states.at(role, state).value = float(chosen is not None and chosen.state == state)
            if pool:
                queued += pool.queued_tokens
                self._gpu_hours += pool.wanted * config.gpus(role) * seen.seconds / 3600
        self._set("engine_queued_prefill_tokens", queued if traffic else None)
        self._set("gpu_hours", self._gpu_hours)
        self._set("observed_request_rate", traffic.requests / seen.seconds if traffic and seen.seconds else None)
        self._set("observed_isl", traffic.input_tokens if traffic else None)
        self._set("observed_osl", traffic.output_tokens if traffic else None)
        self._set("observed_ttft_ms", 1000 * traffic.ttft if traffic and traffic.ttft is not None else None)
        self._set("observed_itl_ms", 1000 * traffic.itl if traffic and traffic.itl is not None else None)
        self._set("predicted_request_rate", forecast.requests_per_second)
        self._set("predicted_isl", forecast.input_tokens)
        self._set("predicted_osl", forecast.output_tokens)
        known = bool(forecast.input_tokens and forecast.output_tokens)
        models: tuple[tuple[Role, LatencyLine | StepTime | None, float, float], ...] = (
            ("prefill", forecast.ttft, config.ttft_ms, TTFT_TAIL),
            ("decode", forecast.itl, config.itl_ms, itl_tail(config)),
        )
        for role, model, target, tail in models:
            capacity = model.sustained(target / 1000, tail, *forecast.tokens(role)) if model and known else None
            self._set(f"engine_{role}_capacity_requests_per_second", capacity)

    @property
    def names(self) -> list[str]:
        """Of all families, also of those that are not known now."""
        return [family.snapshot().name for family in (*self._gauges.values(), self._states, self._ticks)]

    def snapshot(self) -> list[MetricFamily]:
        """A value that is not known has no series."""
        known = [family.snapshot() for name, family in self._gauges.items() if self._known[name]]
        return [*known, self._states.snapshot(), self._ticks.snapshot()]

    def _set(self, name: str, value: float | None) -> None:
        self._known[name] = value is not None
        self._gauges[name].at().value = value or 0.0


@asynccontextmanager
async def served(metrics: PlannerMetrics, host: str, port: int | None) -> AsyncIterator[int | None]:
    """At /metrics of this port, which is yielded; None serves nothing."""
    if port is None:
        yield None
        return

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=exposition(metrics.snapshot()), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application()
    app.router.add_get("/metrics", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise StartError(f"metric_reporting_prometheus_port: cannot listen on {host}:{port}: {error}") from error
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
