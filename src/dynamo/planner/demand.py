"""How many requests per second arrive now, told apart from chance and from what was before a burst began or ended.

Arrivals are counts: five seconds with 20 requests may well have 25 the next time. Observations belong together as long
as chance explains their differences; the newest that do are what demand is estimated from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from dynamo.planner.history import Observation

_SURE = 8.0
"""A change is believed if the logarithm of the likelihood gains this much by it: chance rarely does that."""


class Demand(Struct, frozen=True):
    """Requests per second in the newest observations that belong together."""

    rate: float = 0.0
    deviation: float = 0.0
    """The standard deviation of `rate`, by chance."""
    observations: int = 0
    seconds: float = 0.0


def rate_of(seen: Observation) -> float:
    return seen.traffic.requests / seen.seconds if seen.traffic and seen.seconds > 0 else 0.0


def demand_of(history: Sequence[Observation], most: int) -> Demand:
    """Estimate demand from up to `most` observations; those without data are passed over."""
    known = [seen for seen in history[-most:] if seen.traffic is not None and seen.seconds > 0]
    counts = [(seen.traffic.requests, seen.seconds) for seen in known if seen.traffic]
    while (newer := _changed(counts)) is not None:
        counts = counts[-newer:]
    requests, seconds = sum(count for count, _ in counts), sum(time for _, time in counts)
    if not seconds:
        return Demand()
    return Demand(requests / seconds, math.sqrt(requests) / seconds, len(counts), seconds)


def rising_to(seen: Sequence[Observation], steps: float) -> float:
    """The demand to which a steady rise leads in `steps`, with a slope one standard deviation below its estimate.

    0 where chance explains the slope.
    """
    rates = [rate_of(each) for each in seen]
    mean, middle = sum(rates) / len(rates), (len(rates) - 1) / 2
    spread = sum((at - middle) ** 2 for at in range(len(rates)))
    if not spread:
        return 0.0
    slope = sum((at - middle) * rate for at, rate in enumerate(rates)) / spread
    seconds = sum(each.seconds for each in seen) / len(seen)
    slope -= math.sqrt(mean / seconds / spread)
    return mean + slope * (middle + steps) if slope > 0 else 0.0


def _changed(counts: Sequence[tuple[float, float]]) -> int | None:
    """How many of the newest counts have another rate than those before; None where chance explains all."""
    requests, seconds = sum(count for count, _ in counts), sum(time for _, time in counts)
    most, found = _SURE, None
    new_requests = new_seconds = 0.0
    for newer, (count, time) in enumerate(reversed(counts[1:]), 1):
        new_requests += count
        new_seconds += time
        gain = (
            _likelihood(new_requests, new_seconds)
            + _likelihood(requests - new_requests, seconds - new_seconds)
            - _likelihood(requests, seconds)
        )
        if gain > most:
            most, found = gain, newer
    return found


def _likelihood(requests: float, seconds: float) -> float:
    """The logarithm of the likelihood, up to a constant."""
    rate = requests / seconds
    return requests * math.log(rate) if rate > 0 else 0.0
