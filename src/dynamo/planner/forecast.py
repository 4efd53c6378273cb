"""What a decision expects: how many requests arrive, how large they are, who computes their prompts, and how fast."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from dynamo.planner.capacity import LatencyLine, StepTime, fit_step, fit_ttft, samples
from dynamo.planner.config import PlannerConfig, Role
from dynamo.planner.demand import Demand, demand_of, rate_of, rising_to
from dynamo.planner.history import Observation

_PREDICTED_FROM = 60
"""Observations from which demand is predicted."""
_MOST = 24
"""Observations from which demand is estimated, at most."""
_SPLIT = 12
"""Observations from which it is estimated who computes prompts: that changes with the workers."""
_RISE = 32
"""Observations from which a steady rise is estimated, at most; a mean of `_MOST` would always be behind it."""
SUDDEN = 3
"""A change seen in so few observations is believed with one standard deviation more. That it is there is sure by then,
but not how large it is: a worker that is missing is asked for an interval or two later and comes too late for a burst,
and one that is too much goes with the others when the burst is over."""
_CHANGE = 0.15
"""Demand is predicted to change by at most this share of it: what a burst begins with does not go on for long."""
_MOST_RISE = 0.25
"""The share by which demand is predicted to change at most where a rise has lasted."""
_LEVEL, _TREND, _DAMPING = 0.3, 0.07, 0.9
"""Weights of the newest value and of the newest slope, and how much of the slope is left after each step."""


class Forecast(Struct, frozen=True, kw_only=True):
    """What a decision expects; None where there is no data."""

    demand: Demand = Demand()
    requests_per_second: float | None = None
    input_tokens: float | None = None
    output_tokens: float | None = None
    decode_input_tokens: float | None = None
    """The part of `input_tokens` that decode workers compute; all of it without prefill workers."""
    ttft: LatencyLine | None = None
    itl: StepTime | None = None

    def tokens(self, role: Role) -> tuple[float, float]:
        """Prompt tokens that a worker of this role computes for a request, and output tokens."""
        computed = self.input_tokens if role == "prefill" else self.decode_input_tokens
        return computed or 0.0, self.output_tokens or 0.0


def forecast_of(history: Sequence[Observation], config: PlannerConfig) -> Forecast:
    known = [seen for seen in history[-_PREDICTED_FROM:] if seen.traffic is not None]
    if not known:
        return Forecast()
    least = config.load_min_observations
    first, last = config.roles[0], config.roles[-1]
    demand = demand_of(known, _MOST)
    input_tokens, split_share = _mean(known, "input_tokens"), _mean(known[-_SPLIT:], "split_share")
    return Forecast(
        demand=demand,
        requests_per_second=_expected(known, demand, config),
        input_tokens=input_tokens,
        output_tokens=_mean(known, "output_tokens"),
        decode_input_tokens=None if input_tokens is None else input_tokens * (1 - (split_share or 0.0)),
        ttft=fit_ttft(samples(history, first, config, "ttft"), least, config.ttft_ms / 1000),
        itl=fit_step(samples(history, last, config, "itl"), least),
    )


def _expected(known: Sequence[Observation], demand: Demand, config: PlannerConfig) -> float:
    """The requests per second expected when a worker that is asked for now has started."""
    steps = 1 + config.startup_seconds / config.load_adjustment_interval_seconds
    rates = [rate_of(seen) for seen in known[-demand.observations :]]
    most = _CHANGE * demand.rate
    change = min(most, max(-most, predict(rates, steps, config) - predict(rates, 0, config)))
    if demand.observations <= SUDDEN:
        change += demand.deviation
    longer = demand_of(known, _RISE)
    if config.load_predictor != "constant" and longer.observations >= _MOST:
        risen = rising_to(known[-longer.observations :], steps)
        change = max(change, min(risen - demand.rate, _MOST_RISE * demand.rate))
    return max(0.0, demand.rate + change)


def _mean(known: Sequence[Observation], field: str) -> float | None:
    """The mean of a field over the requests; None where it was never known."""
    pairs = [
        (value, seen.traffic.requests)
        for seen in known
        if seen.traffic and (value := getattr(seen.traffic, field)) is not None
    ]
    weight = sum(requests for _, requests in pairs)
    return sum(value * requests for value, requests in pairs) / weight if weight else None


def predict(values: Sequence[float], steps: float, config: PlannerConfig) -> float:
    """Predict the value after `steps`, never below 0."""
    if not values:
        return 0.0
    match config.load_predictor:
        case "arima":
            predicted = damped_trend(values, steps)
        case "kalman":
            predicted = kalman(values, steps, config)
        case _:
            predicted = values[-1]
    return max(0.0, predicted)


def damped_trend(values: Sequence[float], steps: float) -> float:
    """ARIMA(1,1,2) in the form of exponential smoothing with a damped trend (Gardner and McKenzie)."""
    level, trend = values[0], 0.0
    for value in values[1:]:
        before = level
        level = _LEVEL * value + (1 - _LEVEL) * (before + _DAMPING * trend)
        trend = _TREND * (level - before) + (1 - _TREND) * _DAMPING * trend
    damping: float = (1 - _DAMPING**steps) / (1 - _DAMPING)
    return level + trend * _DAMPING * damping


def kalman(values: Sequence[float], steps: float, config: PlannerConfig) -> float:
    """Predict by a local linear trend: level and slope are random walks with variances q, seen with variance r."""
    if len(values) < config.kalman_min_points:
        return values[-1]
    level, slope = values[0], 0.0
    p00, p01, p11 = config.kalman_r, 0.0, config.kalman_r
    for value in values[1:]:
        level += slope
        p00 += 2 * p01 + p11 + config.kalman_q_level
        p01 += p11
        p11 += config.kalman_q_trend
        gain, slope_gain = p00 / (p00 + config.kalman_r), p01 / (p00 + config.kalman_r)
        error = value - level
        level += gain * error
        slope += slope_gain * error
        p11 -= slope_gain * p01
        p01 -= gain * p01
        p00 -= gain * p00
    return level + slope * steps
