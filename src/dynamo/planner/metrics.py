"""The planner's own metrics, under ai-dynamo's names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import get_args

from aiohttp import web
from msgspec import Struct

from dynamo.planner.capacity import LatencyLine, StepTime
from dynamo.planner.config import PlannerConfig, Role
from dynamo.planner.decide import TTFT_TAIL, ScalingDecision, State, itl_tail
from dynamo.planner.forecast import Forecast
from dynamo.planner.history import Observation, TrafficSeen
from dynamo.protocols.errors import StartError
from dynamo.runtime.exposition import CONTENT_TYPE, exposition
from dynamo.runtime.metrics import Family, Metric, MetricFamily, Number, families

_PREFIX = "dynamo_planner_"


class PlannerMetrics:
    """The metrics of one planner; a value that is not known has no series."""

    def __init__(self, config: PlannerConfig) -> None:
        self._last = _Tick(config)
        self._ticks = Family("counter", f"{_PREFIX}ticks_total", "Decisions made", ("metrics",), Number)

    def observe(self, seen: Observation, decision: ScalingDecision) -> None:
        config, spent = self._last.config, self._last.gpu_hours or 0.0
        for role in config.roles:
            if pool := seen.pool(role):
                spent += pool.wanted * config.gpus(role) * seen.seconds / 3600
        self._last = _Tick(config, seen, decision, spent)
        self._ticks.at("seen" if seen.traffic else "missing").value += 1

    @property
    def names(self) -> list[str]:
        """The names of all families, also of those without a value now."""
        return [family.name for family in self._families()]

    def snapshot(self) -> list[MetricFamily]:
        always = {_PREFIX + "scaling_decision", self._ticks.snapshot().name}
        return [family for family in self._families() if family.samples or family.name in always]

    def _families(self) -> list[MetricFamily]:
        return [*families(_METRICS, [({}, self._last)], _PREFIX), self._ticks.snapshot()]


class _Tick(Struct, frozen=True):
    """What was seen and decided last; nothing yet at the start."""

    config: PlannerConfig
    seen: Observation | None = None
    decision: ScalingDecision | None = None
    gpu_hours: float | None = None

    @property
    def traffic(self) -> TrafficSeen | None:
        return self.seen.traffic if self.seen else None

    @property
    def forecast(self) -> Forecast:
        return self.decision.forecast if self.decision else Forecast()

    def serving(self, role: Role) -> int | None:
        pool = self.seen.pool(role) if self.seen and role in self.config.roles else None
        return pool.serving if pool else None

    def wanted(self, role: Role) -> int | None:
        chosen = self.decision.pool(role) if self.decision and role in self.config.roles else None
        return chosen.workers if chosen else None

    def states(self) -> dict[tuple[str, ...], float]:
        if self.decision is None:
            return {}
        chosen = {role: self.decision.pool(role) for role in self.config.roles}
        return {
            (role, state): float(pool is not None and pool.state == state)
            for role, pool in chosen.items()
            for state in get_args(State)
        }

    def request_rate(self) -> float | None:
        return self.traffic.requests / self.seen.seconds if self.seen and self.traffic and self.seen.seconds else None

    def queued_tokens(self) -> float | None:
        if self.seen is None or self.traffic is None:
            return None
        return sum(pool.queued_tokens for role in self.config.roles if (pool := self.seen.pool(role)))

    def capacity(self, role: Role, model: LatencyLine | StepTime | None, target: float, tail: float) -> float | None:
        forecast = self.forecast
        if model is None or not (forecast.input_tokens and forecast.output_tokens):
            return None
        return model.sustainable_rate(target / 1000, tail, *forecast.tokens(role))


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


_METRICS: tuple[Metric[_Tick], ...] = (
    Metric("gauge", "num_prefill_replicas", "Prefill workers that take requests", lambda tick: tick.serving("prefill")),
    Metric("gauge", "num_decode_replicas", "Decode workers, or workers that do both, that take requests",
        lambda tick: tick.serving("decode")),
    Metric("gauge", "wanted_prefill_replicas", "Prefill workers that the last decision asks for",
        lambda tick: tick.wanted("prefill")),
    Metric("gauge", "wanted_decode_replicas",
        "Decode workers, or workers that do both, that the last decision asks for", lambda tick: tick.wanted("decode")),
    Metric("gauge", "observed_request_rate", "Requests per second in the last interval",
        lambda tick: tick.request_rate()),
    Metric("gauge", "observed_isl", "Mean prompt tokens of the requests that ended in the last interval",
        lambda tick: tick.traffic.input_tokens if tick.traffic else None),
    Metric("gauge", "observed_osl", "Mean output tokens of those requests",
        lambda tick: tick.traffic.output_tokens if tick.traffic else None),
    Metric("gauge", "observed_ttft_ms", "Mean time to the first token in the last interval",
        lambda tick: _ms(tick.traffic.ttft) if tick.traffic else None),
    Metric("gauge", "observed_itl_ms", "Mean time between tokens in the last interval",
        lambda tick: _ms(tick.traffic.itl) if tick.traffic else None),
    Metric("gauge", "predicted_request_rate",
        "Requests per second that are expected when a worker started now would be ready",
        lambda tick: tick.forecast.requests_per_second),
    Metric("gauge", "predicted_isl", "Prompt tokens that are expected of a request",
        lambda tick: tick.forecast.input_tokens),
    Metric("gauge", "predicted_osl", "Output tokens that are expected of a request",
        lambda tick: tick.forecast.output_tokens),
    Metric("gauge", "engine_prefill_capacity_requests_per_second", "What one worker sustains within ttft_ms",
        lambda tick: tick.capacity("prefill", tick.forecast.ttft, tick.config.ttft_ms, TTFT_TAIL)),
    Metric("gauge", "engine_decode_capacity_requests_per_second", "What one worker sustains within itl_ms",
        lambda tick: tick.capacity("decode", tick.forecast.itl, tick.config.itl_ms, itl_tail(tick.config))),
    Metric("gauge", "engine_queued_prefill_tokens", "Prompt tokens without a first output",
        lambda tick: tick.queued_tokens()),
    Metric("gauge", "sla_target_ttft_ms", "ttft_ms of the configuration", lambda tick: tick.config.ttft_ms),
    Metric("gauge", "sla_target_itl_ms", "itl_ms of the configuration", lambda tick: tick.config.itl_ms),
    Metric("gauge", "gpu_hours", "GPU-hours of the workers since the planner started", lambda tick: tick.gpu_hours),
    Metric("gauge", "scaling_decision", "1 for what was decided last", lambda tick: tick.states(), ("role", "state")),
)  # fmt: skip


@asynccontextmanager
async def serve_metrics(metrics: PlannerMetrics, host: str, port: int | None) -> AsyncIterator[int | None]:
    """Serve the metrics at /metrics of this port, which is yielded; None serves nothing."""
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
