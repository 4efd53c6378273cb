"""How much a worker sustains within a latency target, estimated from what live requests saw.

Both models hold while a jam builds up or is worked off, when what is finished says little about what arrives:

- The time to the first token in a queue is `idle / (1 - load / limit)`: its reciprocal falls in a straight line with
  the prompt tokens per second.
- The time between tokens is that of a step, which grows with the requests in the batch, and prompts that are computed
  between the tokens take a share of the time. The batch follows from what is measured: tokens per second times the time
  between them.

No profiling is needed; loads are those of one worker.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from msgspec import Struct

from dynamo.planner.config import PlannerConfig, Role
from dynamo.planner.demand import rate_of
from dynamo.planner.history import Observation, TrafficSeen

_MIN_SPREAD = 1.5
"""Observations determine a line if the highest load is this many times the lowest."""
_MAX_EXTRAPOLATION = 2.0
"""A model is believed up to this many times the highest load that was seen."""
_MIN_MISSES = 3
"""This many observations above a target are no accident."""
_HALF_LIFE_SHARE = 0.25
_MOST_REQUESTS = 1.28
"""90 % of a normal distribution lie less than 1.28 standard deviations above its mean. Workers are added one by one,
so that most of the time each has less to do than it may, and 95 % are within a target."""
_HALVINGS = 30
_PERIOD_LENGTH = 3
"""Observations that are looked at together: in a single one, prompts and the steps they delay fall apart."""


class WorkerSample(Struct, frozen=True):
    """What one worker did on average in one interval, per second."""

    prompts: float
    """Prompt tokens."""
    generated: float
    """Output tokens."""
    latency: float
    weight: float


class LatencyLine(Struct, frozen=True):
    idle: float
    """The latency without load, in seconds."""
    limit: float
    """The load at which latency has no bound."""
    seen: float
    """The highest load that was observed."""
    fitted: bool = True
    missed_load: float = math.inf
    """A load at which the target was missed."""

    def sustainable_rate(self, target: float, tail: float, input_tokens: float, output_tokens: float) -> float:
        """Requests per second at which `idle + tail * (mean - idle)` is the target; 0 if an idle worker misses it."""
        allowed = self.idle + (target - self.idle) / tail
        if allowed <= self.idle:
            load = 0.0 if self.fitted else self.limit / 4
        else:
            load = min(self.limit * (1 - self.idle / allowed), _MAX_EXTRAPOLATION * self.seen, self.missed_load)
        return load / input_tokens

    def is_half_used(self, rate: float, input_tokens: float, output_tokens: float) -> bool:
        """Whether `rate` requests per second are less than half of what the worker can do at all."""
        return rate * input_tokens < self.limit / 2


class StepTime(Struct, frozen=True):
    """Seconds between tokens: `(idle + per_request * batch) / (1 - per_prompt * prompt tokens per second)`."""

    idle: float
    per_request: float
    per_prompt: float
    """Seconds that a prompt token takes from those that wait for their next token."""
    seen: float
    """The highest rate of output tokens that was observed."""
    fitted: bool = True

    def sustainable_rate(self, target: float, tail: float, input_tokens: float, output_tokens: float) -> float:
        """Requests per second at which most requests are within the target; 0 if an idle worker misses it."""
        most = _MAX_EXTRAPOLATION * self.seen / output_tokens
        if self.idle >= target:
            return 0.0 if self.fitted else most / 8
        cost = self._per_second(input_tokens, output_tokens)
        low, high = 0.0, min(most, 1 / cost) if cost else most
        for _ in range(_HALVINGS):
            rate = (low + high) / 2
            slow = rate * cost >= 1 or self._tail_latency(rate, tail, input_tokens, output_tokens) > target
            low, high = (low, rate) if slow else (rate, high)
        return low

    def _tail_latency(self, rate: float, tail: float, input_tokens: float, output_tokens: float) -> float:
        """What most requests stay below: `idle + tail * (mean - idle)`, or more where prompts come in between.

        An answer waits for the prompts of all requests that arrive while it is generated: few, so that chance makes
        answers differ; and each wait is time in which further requests arrive.
        """
        # The batch is the rate times the time that its tokens take.
        mean = self.idle / (1 - rate * self._per_second(input_tokens, output_tokens))
        prompt = self.per_prompt * input_tokens
        deviation = prompt * math.sqrt(rate * mean / output_tokens) / (1 - rate * prompt)
        return max(self.idle + tail * (mean - self.idle), mean + _MOST_REQUESTS * deviation)

    def is_half_used(self, rate: float, input_tokens: float, output_tokens: float) -> bool:
        """Whether `rate` requests per second are less than half of what the worker can do at all."""
        return rate * self._per_second(input_tokens, output_tokens) < 0.5

    def _per_second(self, input_tokens: float, output_tokens: float) -> float:
        return self.per_request * output_tokens + self.per_prompt * input_tokens


def fit_ttft(samples: Sequence[WorkerSample], least: int, target: float = math.inf) -> LatencyLine | None:
    """Fit a line; None for fewer than `least` samples. Loads with a latency above `target` never count as fine."""
    if len(samples) < least:
        return None
    weight = sum(each.weight for each in samples)
    x = sum(each.weight * each.prompts for each in samples) / weight
    y = sum(each.weight / each.latency for each in samples) / weight
    low, high = min(each.prompts for each in samples), max(each.prompts for each in samples)
    if high >= _MIN_SPREAD * low:
        xx = sum(each.weight * (each.prompts - x) ** 2 for each in samples)
        xy = sum(each.weight * (each.prompts - x) * (1 / each.latency - y) for each in samples)
        slope = -xy / xx
        if slope <= 0:
            return LatencyLine(1 / y, math.inf, high, missed_load=_missed_load(samples, target))
        at_rest = y + slope * x
        return LatencyLine(1 / at_rest, at_rest / slope, high, missed_load=_missed_load(samples, target))
    # One load says nothing about others: assume that it is half of the limit. An overloaded fleet must not look as if
    # more workers could not help.
    return LatencyLine(1 / y / 2, 2 * x, high, fitted=False)


def fit_step(samples: Sequence[WorkerSample], least: int) -> StepTime | None:
    """Fit the time of a step; None for fewer than `least` samples."""
    if len(samples) < least:
        return None
    # Times the latency, both loads explain it in a straight line. Errors count in proportion to it: a jam, in which it
    # is tens of times higher, must not decide alone.
    rows = [
        (each.generated * each.latency, each.prompts * each.latency, each.latency, each.weight / each.latency**2)
        for each in samples
    ]
    weight = sum(row[3] for row in rows)
    batch, prompts, latency = (sum(row[at] * row[3] for row in rows) / weight for at in range(3))
    seen = max(each.generated for each in samples)
    if max(row[0] for row in rows) < _MIN_SPREAD * min(row[0] for row in rows):
        # As for the time to the first token: one load says nothing about others.
        return StepTime(latency / 2, latency / 2 / batch, 0.0, seen, fitted=False)

    def moment(one: int, other: int) -> float:
        means = (batch, prompts, latency)
        return sum(row[3] * (row[one] - means[one]) * (row[other] - means[other]) for row in rows)

    bb, bp, pp, bl, pl = moment(0, 0), moment(0, 1), moment(1, 1), moment(0, 2), moment(1, 2)
    determinant = bb * pp - bp * bp
    per_request, per_prompt = bl / bb, 0.0
    if determinant > 1e-6 * bb * pp:
        per_request, per_prompt = (bl * pp - pl * bp) / determinant, (pl * bb - bl * bp) / determinant
        # Neither makes a step shorter: what seems so is noise, and the other one explains all of it.
        if per_prompt < 0:
            per_request, per_prompt = bl / bb, 0.0
        elif per_request < 0:
            per_request, per_prompt = 0.0, pl / pp
    per_request, per_prompt = max(0.0, per_request), max(0.0, per_prompt)
    idle = latency - per_request * batch - per_prompt * prompts
    if idle <= 0:
        fastest = min(each.latency for each in samples)
        return StepTime(fastest, max(0.0, latency - fastest) / batch, 0.0, seen)
    return StepTime(idle, per_request, per_prompt, seen)


def _missed_load(samples: Sequence[WorkerSample], target: float) -> float:
    """The upper quartile of loads that missed: while a jam is worked off, latency is high at loads that are fine."""
    missed_load = sorted(each.prompts for each in samples if each.latency > target)
    return missed_load[len(missed_load) * 3 // 4] if len(missed_load) >= _MIN_MISSES else math.inf


def samples(history: Sequence[Observation], role: Role, config: PlannerConfig, latency: str) -> list[WorkerSample]:
    """Samples of a worker for "ttft" or "itl". Where there are enough calm observations, those in a jam are left out.

    Requests that wait stay where they were sent: while a jam is worked off, some workers have too much and others
    nothing, and their mean says little about one of them.
    """
    recent = history[-config.capacity_samples :]
    half_life = max(1.0, _HALF_LIFE_SHARE * config.capacity_samples)
    found: list[WorkerSample] = []
    for period, target in ((_PERIOD_LENGTH, config.ttft_ms / 1000), (1, config.ttft_ms / 1000), (1, math.inf)):
        found = list(_worker_samples(recent, role, config.mode != "agg", latency, half_life, target, period))
        if len(found) >= config.load_min_observations:
            break
    return found


def late(seen: Observation, target: float) -> float:
    """How many requests wait beyond those that can meet the target at this rate."""
    return max(0.0, seen.traffic.waiting - rate_of(seen) * target) if seen.traffic else 0.0


def _worker_samples(
    recent: Sequence[Observation], role: Role, split: bool, latency: str, half_life: float, target: float, most: int
) -> Iterator[WorkerSample]:
    """Yield means of `most` observations each."""
    newest = len(recent) - 1
    length, period = 0.0, _FleetPeriod(split=split)
    for at, (before, now) in enumerate(pairwise(recent), 1):
        pool, earlier, traffic = now.pool(role), before.pool(role), now.traffic
        # It is known of requests that ended, and while a jam builds up none may end.
        length = (traffic and traffic.input_tokens) or length
        if (
            pool is None or earlier is None or traffic is None or now.seconds <= 0
            or not pool.serving or pool.serving != earlier.serving
            or late(before, target) or late(now, target) or (traffic.ttft or 0.0) > target
        ):  # fmt: skip
            period = _FleetPeriod(split=split)
            continue
        prompts = length * traffic.prompts_computed(role, split=split)
        if role == "prefill" and traffic.first_tokens and not prompts:
            continue  # the times are those of prompts that decode workers computed
        period.add(traffic, pool.serving * now.seconds, prompts, latency)
        if period.observations >= most:
            if sample := period.sample(0.5 ** ((newest - at) / half_life)):
                yield sample
            period = _FleetPeriod(split=split)


class _FleetPeriod:
    """Observations in a row with the same number of workers."""

    def __init__(self, *, split: bool) -> None:
        self.observations = 0
        self._split = split
        self._share = self._prompts = self._generated = self._first = self._weight = self._latency = 0.0

    def add(self, traffic: TrafficSeen, share: float, prompts: float, latency: str) -> None:
        seconds: float | None = getattr(traffic, latency)
        weight = traffic.first_tokens if latency == "ttft" else traffic.generated - traffic.first_tokens
        self.observations += 1
        self._share += share
        self._prompts += prompts
        self._generated += traffic.generated
        self._first += traffic.first_tokens
        if seconds and weight > 0:
            self._weight += weight
            self._latency += weight * seconds

    def sample(self, age: float) -> WorkerSample | None:
        # Without prompts, their length was not known yet, unless prefill workers computed them all.
        if not (self._weight and self._first and self._generated and (self._prompts or self._split)):
            return None
        return WorkerSample(
            self._prompts / self._share, self._generated / self._share, self._latency / self._weight, self._first * age
        )
