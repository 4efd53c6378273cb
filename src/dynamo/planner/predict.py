"""Predicts a series some steps ahead: `predictor(values, steps)`. Pure; the newest value is the last."""

from __future__ import annotations

from collections.abc import Sequence

from dynamo.planner.config import PlannerConfig

_LEVEL, _TREND, _DAMPING = 0.3, 0.07, 0.9
"""Weights of the newest value and of the newest slope, and how much of the slope is left after each step."""


def predict(values: Sequence[float], steps: float, config: PlannerConfig) -> float:
    """Never below 0."""
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
    """A local linear trend: level and slope are random walks with variances q, seen with variance r."""
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
