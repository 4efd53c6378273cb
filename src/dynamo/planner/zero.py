"""No workers at all: after a time without requests none run, and the first request that waits asks for one."""

from __future__ import annotations

from collections.abc import Sequence

from dynamo.planner.config import PlannerConfig, Role
from dynamo.planner.history import Observation


def idle_long_enough(history: Sequence[Observation], role: Role, config: PlannerConfig) -> bool:
    """Whether workers of this role were there and not used, for as long as `scale_to_zero_seconds` wants.

    Missing metrics are no proof of that. While a worker starts, the time has not begun: what it is started for may come
    again when it is ready.
    """
    for seen in reversed(history):
        pool = seen.pool(role)
        if seen.traffic is None or seen.traffic.requests or seen.traffic.unfinished:
            return False
        if pool is None or not pool.wanted or pool.starting:
            return False
        if history[-1].at - seen.at + seen.seconds >= config.scale_to_zero_seconds:
            return True
    return False
