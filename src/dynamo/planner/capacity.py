"""How much a worker sustains within a latency target, estimated from what live requests saw.

In a queue, latency is `idle / (1 - load / limit)`: its reciprocal falls in a straight line with the load. The line is
fitted to observations, so that no profiling is needed; the load is in tokens per second and worker.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

from msgspec import Struct

from dynamo.planner.config import PlannerConfig, Role
from dynamo.planner.history import Observation

_SPREAD = 1.5
"""Observations determine a line if the highest load is this many times the lowest."""
_EXTRAPOLATED = 2.0
"""The line is believed up to this many times the highest load that was seen."""
_MISSES = 3
"""As many observations above a target are no accident."""
_HALF_LIFE_SHARE = 0.25


class Sampled(Struct, frozen=True):
    load: float
    latency: float
    weight: float


class LatencyLine(Struct, frozen=True):
    idle: float
    """Seconds without load."""
    limit: float
    """The load at which latency has no bound."""
    seen: float
    """The highest load that was observed."""
    fitted: bool = True
    missed: float = math.inf
    """A load at which the target was missed."""

    def sustained(self, target: float, tail: float) -> float:
        """The load at which `idle + tail * (mean - idle)` reaches the target; 0 where even an idle worker misses it."""
        allowed = self.idle + (target - self.idle) / tail
        if allowed <= self.idle:
            return 0.0 if self.fitted else self.limit / 4
        return min(self.limit * (1 - self.idle / allowed), _EXTRAPOLATED * self.seen, self.missed)


def fit(samples: Sequence[Sampled], least: int, target: float = math.inf) -> LatencyLine | None:
    """None for fewer than `least` samples. Loads at which latency was above `target` are never believed to be fine."""
    if len(samples) < least:
        return None
    weight = sum(each.weight for each in samples)
    x = sum(each.weight * each.load for each in samples) / weight
    y = sum(each.weight / each.latency for each in samples) / weight
    low, high = min(each.load for each in samples), max(each.load for each in samples)
    if high >= _SPREAD * low:
        xx = sum(each.weight * (each.load - x) ** 2 for each in samples)
        xy = sum(each.weight * (each.load - x) * (1 / each.latency - y) for each in samples)
        slope = -xy / xx
        if slope <= 0:
            return LatencyLine(1 / y, math.inf, high, missed=_missed(samples, target))
        at_rest = y + slope * x
        return LatencyLine(1 / at_rest, at_rest / slope, high, missed=_missed(samples, target))
    # One load says nothing about others: assume that it is half of the limit. An overloaded fleet must not look as if
    # more workers could not help.
    return LatencyLine(1 / y / 2, 2 * x, high, fitted=False)


def _missed(samples: Sequence[Sampled], target: float) -> float:
    """The upper quartile: while a jam is worked off, latency is high at loads that would be fine otherwise."""
    missed = sorted(each.load for each in samples if each.latency > target)
    return missed[len(missed) * 3 // 4] if len(missed) >= _MISSES else math.inf


def samples(history: Sequence[Observation], role: Role, config: PlannerConfig, latency: str) -> list[Sampled]:
    """`latency` is "ttft", which prompts cause, or "itl", which output tokens cause.

    Intervals in which the number of workers changed are left out: the load per worker is unknown there.
    """
    recent = history[-config.capacity_samples :]
    half_life = max(1.0, _HALF_LIFE_SHARE * config.capacity_samples)
    return [
        Sampled(load / count, seconds, weight * 0.5 ** (age / half_life))
        for age, (count, load, seconds, weight) in _measured(recent, role, latency)
    ]


def _measured(
    recent: Sequence[Observation], role: Role, latency: str
) -> Iterable[tuple[int, tuple[int, float, float, float]]]:
    newest = len(recent) - 1
    for at, (before, now) in enumerate(pairwise(recent), 1):
        pool, earlier, traffic = now.pool(role), before.pool(role), now.traffic
        if pool is None or earlier is None or traffic is None or now.seconds <= 0:
            continue
        count = pool.serving
        if not count or count != earlier.serving:
            continue
        if latency == "ttft":
            seconds, load, weight = (
                traffic.ttft,
                traffic.first_tokens * (traffic.input_tokens or 0),
                traffic.first_tokens,
            )
        else:
            seconds, load, weight = traffic.itl, traffic.generated, traffic.first_tokens
        if seconds and load > 0 and weight > 0:
            yield newest - at, (count, load / now.seconds, seconds, weight)
